//! Frames of video: each is one file, written or read as a whole, as programs for film scans and their tests do.
//!
//! Bytes of a frame follow from the definitions of the pixel formats: 8-bit YUV 4:2:2 has 2 bytes a pixel; v210 (10-bit YUV 4:2:2) stores 48
//! pixels of a row in 128 bytes; 10-bit RGB and 8-bit RGBA have 4 bytes, 12-bit RGB 4.5, 16-bit RGB 6 and 16-bit RGBA 8.

use super::Recorder;
use crate::clock::Stopwatch;
use crate::error::LabError;
use crate::fio::Monitor;
use crate::result::{Round, Workload};
use crate::statistics::Seeded;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Pixel format of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PixelFormat {
    /// 8-bit YUV 4:2:2.
    Yuv8,
    /// 10-bit YUV 4:2:2 (v210).
    Yuv10,
    /// 8-bit RGBA.
    Rgba8,
    /// 10-bit RGB.
    Rgb10,
    /// 12-bit RGB.
    Rgb12,
    /// 16-bit RGB.
    Rgb16,
    /// 16-bit RGBA.
    Rgba16,
}

/// Names of the formats on the command line.
pub const FORMATS: [(&str, PixelFormat); 7] = [
    ("yuv8", PixelFormat::Yuv8),
    ("yuv10", PixelFormat::Yuv10),
    ("rgba8", PixelFormat::Rgba8),
    ("rgb10", PixelFormat::Rgb10),
    ("rgb12", PixelFormat::Rgb12),
    ("rgb16", PixelFormat::Rgb16),
    ("rgba16", PixelFormat::Rgba16),
];

/// Names and sizes of frames in pixels.
pub const RESOLUTIONS: [(&str, u64, u64); 10] = [
    ("ntsc", 720, 486),
    ("pal", 720, 576),
    ("720p", 1280, 720),
    ("1080p", 1920, 1080),
    ("2k", 2048, 1080),
    ("2k-full", 2048, 1556),
    ("uhd", 3840, 2160),
    ("4k", 4096, 2160),
    ("4k-full", 4096, 3112),
    ("8k", 7680, 4320),
];

impl PixelFormat {
    /// Bytes of a frame without header or padding.
    #[must_use]
    pub fn frame_bytes(self, width: u64, height: u64) -> u64 {
        match self {
            Self::Yuv8 => width * height * 2,
            Self::Yuv10 => width.div_ceil(48) * 128 * height,
            Self::Rgba8 | Self::Rgb10 => width * height * 4,
            Self::Rgb12 => width * height * 9 / 2,
            Self::Rgb16 => width * height * 6,
            Self::Rgba16 => width * height * 8,
        }
    }
}

/// Writes or reads frames, one file each, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameLoad {
    /// Bytes of a frame.
    pub frame_bytes: u64,
    /// Number of frames.
    pub frames: u64,
    /// Whether the frames are written; else those that a former step wrote are read.
    pub writes: bool,
}

impl FrameLoad {
    /// The load as part of a result.
    #[must_use]
    pub fn workload(&self) -> Workload {
        Workload {
            pattern: format!("frames {}", if self.writes { "write" } else { "read" }),
            block_bytes: self.frame_bytes,
            read_percent: if self.writes { 0 } else { 100 },
            workers: 1,
            depth: 1,
            size_bytes: self.frame_bytes.saturating_mul(self.frames),
            ..Workload::default()
        }
    }

    /// Runs the load in a directory; `None` if the monitor stopped it.
    ///
    /// # Errors
    /// If a frame cannot be written or read as a whole.
    pub fn run(&self, directory: &Path, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let folder = directory.join(format!("{}.frames", crate::load::FILE_PREFIX));
        if self.writes {
            std::fs::create_dir_all(&folder).map_err(LabError::io(&folder))?;
        }
        self.run_on(&mut FramesInFolder { folder, written: 0 }, monitor)
    }

    /// Runs the load on files; `None` if the monitor stopped it. Written frames are on stable storage when the last one is: the
    /// time of the final flush is part of the round.
    ///
    /// # Errors
    /// If a frame cannot be written or read as a whole.
    pub fn run_on(&self, files: &mut dyn FrameFiles, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let mut buffer = vec![0_u8; usize::try_from(self.frame_bytes).unwrap_or(usize::MAX)];
        let mut seeded = Seeded::new(self.frame_bytes);
        seeded.fill(&mut buffer);
        let mut recorder = Recorder::default();
        let watch = Stopwatch::start();
        for number in 0..self.frames {
            if !monitor.poll(watch.seconds()) {
                return Ok(None);
            }
            let begun = watch.seconds();
            if self.writes {
                // The frames differ, so that they do not deduplicate; a whole new content would measure the generator.
                for block in buffer.chunks_mut(4096) {
                    let place = block.len().min(8);
                    seeded.fill(&mut block[..place]);
                }
                files.write(number, &buffer)?;
                recorder.record(watch.seconds(), watch.seconds() - begun, 0, self.frame_bytes);
            } else {
                files.read(number, &mut buffer)?;
                recorder.record(watch.seconds(), watch.seconds() - begun, self.frame_bytes, 0);
            }
        }
        if self.writes {
            files.flush()?;
            monitor.poll(watch.seconds());
        }
        let mut round = recorder.round(watch.seconds());
        let frames_per_s = self.frames as f64 / round.seconds.max(1e-9);
        round.figures.insert("frames_per_s".to_owned(), frames_per_s);
        Ok(Some(round))
    }
}

/// Files of one frame each.
pub trait FrameFiles {
    /// Writes a new frame.
    ///
    /// # Errors
    /// If it cannot be written as a whole.
    fn write(&mut self, number: u64, content: &[u8]) -> Result<(), LabError>;

    /// Reads a frame.
    ///
    /// # Errors
    /// If it is missing, or shorter.
    fn read(&mut self, number: u64, buffer: &mut [u8]) -> Result<(), LabError>;

    /// Makes all frames that were written stable.
    ///
    /// # Errors
    /// If a frame cannot be made stable.
    fn flush(&mut self) -> Result<(), LabError>;
}

/// Frames in a directory.
struct FramesInFolder {
    folder: PathBuf,
    written: u64,
}

impl FramesInFolder {
    fn frame(&self, number: u64) -> PathBuf {
        self.folder.join(format!("frame.{number:07}"))
    }
}

impl FrameFiles for FramesInFolder {
    fn write(&mut self, number: u64, content: &[u8]) -> Result<(), LabError> {
        let path = self.frame(number);
        let mut file = File::create(&path).map_err(LabError::io(&path))?;
        self.written = self.written.max(number + 1);
        file.write_all(content).map_err(LabError::io(&path))
    }

    fn read(&mut self, number: u64, buffer: &mut [u8]) -> Result<(), LabError> {
        let path = self.frame(number);
        let mut file = File::open(&path).map_err(LabError::io(&path))?;
        file.read_exact(buffer).map_err(LabError::io(&path))?;
        // The kernel's copy is dropped, so that the next round asks the server again.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LabError> {
        for number in 0..self.written {
            let path = self.frame(number);
            let file = File::open(&path).map_err(LabError::io(&path))?;
            file.sync_data().map_err(LabError::io(&path))?;
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::NeverStops;

    #[test]
    fn sizes_of_frames_follow_from_the_pixel_formats() {
        let size = |format: PixelFormat, name| {
            let (_, width, height) = RESOLUTIONS.iter().find(|(have, ..)| *have == name).unwrap();
            format.frame_bytes(*width, *height)
        };
        assert_eq!(size(PixelFormat::Yuv10, "720p"), 2_488_320);
        assert_eq!(size(PixelFormat::Yuv10, "2k-full"), 8_564_224);
        assert_eq!(size(PixelFormat::Rgb16, "4k-full"), 76_480_512);
        assert_eq!(size(PixelFormat::Rgb12, "1080p"), 9_331_200);
        assert_eq!(size(PixelFormat::Rgba16, "8k"), 265_420_800);
        assert_eq!(size(PixelFormat::Yuv8, "ntsc"), 699_840);
    }

    #[test]
    fn frames_that_were_written_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let write = FrameLoad { frame_bytes: 100_000, frames: 5, writes: true };
        let round = write.run(dir.path(), &mut NeverStops).unwrap().unwrap();
        assert_eq!((round.written.bytes, round.written.operations), (500_000, 5));
        let read = FrameLoad { writes: false, ..write };
        let round = read.run(dir.path(), &mut NeverStops).unwrap().unwrap();
        assert_eq!((round.read.bytes, round.read.operations), (500_000, 5));
        assert!(round.latency.unwrap().max_ns > 0);
        let more = FrameLoad { frames: 6, ..read };
        assert!(more.run(dir.path(), &mut NeverStops).unwrap_err().to_string().contains("frame.0000005"));
    }
}
