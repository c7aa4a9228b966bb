//! Access specifications of IOMeter (`.icf`): the workloads that a user has already.
//!
//! The format is lines in sections. A line that begins with `'` names what follows; values are separated by commas or tabs. We read
//! `'Access specification name`, its rows (`size, % of size, % reads, % random, delay, burst, align, reply`), `'Run Time`, `'Ramp Up Time`
//! and `'Queue Depth Cycling` (start, end, step, LINEAR or EXPONENTIAL). Source: Iometer User's Guide, appendix B.

use super::{Grid, Pattern};
use crate::error::LabError;

/// Most specifications of a file.
const MAX_PATTERNS: usize = 1024;

/// Most depths of a ladder.
const MAX_DEPTHS: usize = 64;

/// Reads a file's specifications as a grid. `name` is for messages.
///
/// # Errors
/// If there is no specification, or one that fio cannot express: rows of different mixes, delays, or bursts.
pub fn parse(name: &str, text: &str) -> Result<Grid, LabError> {
    let mut grid = Grid { patterns: Vec::new(), depths: Vec::new(), ..Grid::default() };
    let mut lines = text.lines().enumerate();
    let mut pattern: Option<Pattern> = None;
    while let Some((number, line)) = lines.next() {
        let label = line.trim();
        if label.starts_with("'Access specification name") {
            grid.patterns.extend(pattern.take());
            let (_, title) = lines.next().unwrap_or((number, ""));
            let title = title.trim().rsplit_once(',').map_or(title.trim(), |(title, _)| title.trim());
            pattern = Some(Pattern { name: title.to_owned(), blocks: Vec::new(), read_percent: 0, random_percent: 0 });
        } else if label.starts_with("'END access specifications") {
            grid.patterns.extend(pattern.take());
        } else if label.starts_with("'Run Time") {
            // The next line names the columns.
            let values = numbers(
                lines.by_ref().map(|(_, line)| line).find(|line| !line.trim().starts_with('\'')).unwrap_or_default(),
            );
            if let [hours, minutes, seconds, ..] = values[..] {
                grid.seconds =
                    hours.saturating_mul(3600).saturating_add(minutes.saturating_mul(60)).saturating_add(seconds);
            }
        } else if label.starts_with("'Ramp Up Time") {
            grid.ramp_seconds =
                lines.next().and_then(|(_, line)| numbers(line).first().copied()).unwrap_or(grid.ramp_seconds);
        } else if label.starts_with("'Queue Depth Cycling") {
            grid.depths = ladder(
                lines.by_ref().map(|(_, line)| line).find(|line| !line.trim().starts_with('\'')).unwrap_or_default(),
            );
        } else if !label.is_empty()
            && !label.starts_with('\'')
            && let Some(pattern) = &mut pattern
        {
            add_row(pattern, label).map_err(|what| LabError::format(name, format!("line {}: {what}", number + 1)))?;
        }
        if grid.patterns.len() > MAX_PATTERNS {
            return Err(LabError::format(name, format!("more than {MAX_PATTERNS} access specifications")));
        }
    }
    grid.patterns.extend(pattern);
    grid.patterns.retain(|pattern| !pattern.blocks.is_empty());
    if grid.patterns.is_empty() {
        return Err(LabError::format(name, "no access specification: is this an .icf file of IOMeter?"));
    }
    if grid.depths.is_empty() {
        grid.depths = Grid::default().depths;
    }
    if grid.seconds == 0 {
        grid.seconds = Grid::default().seconds;
    }
    Ok(grid)
}

fn numbers(line: &str) -> Vec<u64> {
    line.split([',', '\t', ' ']).filter(|word| !word.is_empty()).map_while(|word| word.parse().ok()).collect()
}

/// Adds a row of sizes to a specification.
fn add_row(pattern: &mut Pattern, line: &str) -> Result<(), String> {
    let row: Vec<u32> = line
        .split([',', '\t'])
        .filter(|word| !word.trim().is_empty())
        .map_while(|word| word.trim().parse().ok())
        .collect();
    let [size, share, reads, random, delay, burst, ..] = row[..] else {
        return Err(format!("'{line}' is no row of size, % of size, % reads, % random, delay and burst"));
    };
    if size == 0 || share > 100 || reads > 100 || random > 100 {
        return Err("sizes begin at 1 byte and shares end at 100 percent".to_owned());
    }
    if delay > 0 || burst > 1 {
        return Err("delays and bursts between operations cannot be reproduced".to_owned());
    }
    if !pattern.blocks.is_empty() && (pattern.read_percent, pattern.random_percent) != (reads, random) {
        return Err(format!(
            "the rows of '{}' mix reads and places differently: fio has one mix for all sizes",
            pattern.name
        ));
    }
    pattern.read_percent = reads;
    pattern.random_percent = random;
    pattern.blocks.push((u64::from(size), share));
    let shares: u64 = pattern.blocks.iter().map(|(_, share)| u64::from(*share)).sum();
    if shares > 100 {
        return Err(format!("the shares of sizes add up to {shares} percent"));
    }
    Ok(())
}

/// Depths from a line `start end step LINEAR|EXPONENTIAL`.
fn ladder(line: &str) -> Vec<u32> {
    let values: Vec<u32> = numbers(line).into_iter().filter_map(|value| u32::try_from(value).ok()).collect();
    let [start, end, step, ..] = values[..] else { return Vec::new() };
    let is_exponential = line.contains("EXPONENTIAL");
    let mut depths = Vec::new();
    let mut depth = start.max(1);
    while depth <= end && depths.len() < MAX_DEPTHS {
        depths.push(depth);
        depth = if is_exponential { depth.saturating_mul(step.max(2)) } else { depth.saturating_add(step.max(1)) };
    }
    depths
}

/// Fuzz body of the reader.
pub fn fuzz(input: &[u8]) {
    if let Ok(grid) = parse("input", &String::from_utf8_lossy(input)) {
        assert!(!grid.patterns.is_empty() && !grid.depths.is_empty(), "a grid has points");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "Version 2006.07.27 \n'TEST SETUP ====\n'Run Time\n'\thours      minutes    seconds\n\t0          1          30\n'Ramp Up Time (s)\n\t5\n\
        'Queue Depth Cycling\n'\tstart      end        step       step type\n\t1          32         2          EXPONENTIAL\n'END test setup\n\
        'ACCESS SPECIFICATIONS ====\n'Access specification name,default assignment\n\t4K; 100% Read; 0% random,NONE\n'size,% of size,% reads,% random,delay,burst,align,reply\n\t4096,100,100,0,0,1,0,0\n\
        'Access specification name,default assignment\n\tFile Server,ALL\n'size,% of size,% reads,% random,delay,burst,align,reply\n\t512,10,80,100,0,1,0,0\n\t4096,90,80,100,0,1,0,0\n'END access specifications\n";

    #[test]
    fn specifications_times_and_depths_are_read() {
        let grid = parse("test.icf", FILE).unwrap();
        assert_eq!((grid.seconds, grid.ramp_seconds), (90, 5));
        assert_eq!(grid.depths, [1, 2, 4, 8, 16, 32]);
        assert_eq!(grid.patterns.len(), 2);
        assert_eq!(grid.patterns[0].name, "4K; 100% Read; 0% random");
        assert_eq!(grid.patterns[1].blocks, [(512, 10), (4096, 90)]);
        assert_eq!((grid.patterns[1].read_percent, grid.patterns[1].random_percent), (80, 100));
    }

    #[test]
    fn specifications_that_fio_cannot_express_are_refused() {
        let mixed = FILE.replace("512,10,80,100", "512,10,70,100");
        let text = parse("test.icf", &mixed).unwrap_err().to_string();
        assert!(text.starts_with("test.icf: line 21:") && text.contains("File Server"), "{text}");
        let burst = FILE.replace("512,10,80,100,0,1", "512,10,80,100,0,8");
        assert!(parse("test.icf", &burst).unwrap_err().to_string().contains("bursts"));
        assert!(parse("test.icf", "hello").unwrap_err().to_string().contains("no access specification"));
    }
}
