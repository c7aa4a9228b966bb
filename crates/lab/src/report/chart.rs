//! Line charts as SVG.

use super::escaped;
use std::fmt::Write;

/// Width and height of a chart, and of its plot within, in SVG units.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 72.0;
const TOP: f64 = 28.0;
const RIGHT: f64 = 12.0;
const BOTTOM: f64 = 36.0;

/// Height of a row of the legend.
const LEGEND_ROW: f64 = 15.0;

/// Colours; more lines than colours repeat them.
const COLOURS: usize = 6;

/// Most lines of a chart that are named.
const MAX_NAMES: usize = 18;

/// A line of a chart.
pub struct Line {
    /// Name.
    pub name: String,
    /// Points in ascending order of x.
    pub points: Vec<(f64, f64)>,
    /// Whether it is dashed.
    pub dashed: bool,
}

/// An axis.
pub struct Axis {
    /// Title.
    pub title: &'static str,
    /// Whether equal distances are equal factors.
    pub is_log: bool,
    /// Text of a value.
    pub format: fn(f64) -> String,
}

/// A chart.
pub struct Chart {
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines.
    pub lines: Vec<Line>,
    /// Range of x that is shaded.
    pub window: Option<(f64, f64)>,
    /// Words written over the plot.
    pub stamp: Option<&'static str>,
}

/// Range of an axis.
struct Range {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Range {
    fn of(values: impl Iterator<Item = f64> + Clone, axis: &Axis) -> Self {
        let high = values.clone().filter(|value| value.is_finite()).fold(0.0, f64::max);
        if axis.is_log {
            let low = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
            let low = if low.is_finite() { low } else { 1.0 };
            return Self { low, high: high.max(low * 2.0), is_log: true };
        }
        Self { low: 0.0, high: if high > 0.0 { high * 1.05 } else { 1.0 }, is_log: false }
    }

    /// Place of a value, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    /// Values at which there is a grid line.
    fn ticks(&self) -> Vec<f64> {
        (0..=4)
            .map(|tick| f64::from(tick) / 4.0)
            .map(|share| match self.is_log {
                true => self.low * (self.high / self.low).powf(share),
                false => self.low + (self.high - self.low) * share,
            })
            .collect()
    }
}

impl Chart {
    /// The chart as SVG, with its title as its name for screen readers.
    pub fn svg(&self) -> String {
        let x = Range::of(self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)), &self.x);
        let y = Range::of(self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)), &self.y);
        let named = self.lines.len().min(MAX_NAMES);
        let legend_rows = if self.lines.len() > 1 { named.div_ceil(2) } else { 0 };
        let height = HEIGHT + legend_rows as f64 * LEGEND_ROW;
        let to_x = |value: f64| LEFT + x.share(value) * (WIDTH - LEFT - RIGHT);
        let to_y = |value: f64| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM);
        let mut svg = String::new();
        let title = escaped(&self.title);
        let _ = write!(
            svg,
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\"><text x=\"{LEFT}\" y=\"16\" font-weight=\"600\">{title}</text>"
        );
        if let Some((from, to)) = self.window {
            let left = to_x(from);
            let right = to_x(to);
            let _ = write!(
                svg,
                "<rect class=\"shade\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\"><title>steady window</title></rect>",
                (right - left).max(0.0),
                HEIGHT - TOP - BOTTOM
            );
        }
        self.grid(&mut svg, &x, &y);
        for (number, line) in self.lines.iter().enumerate() {
            let points: Vec<String> =
                line.points.iter().map(|(a, b)| format!("{:.1},{:.1}", to_x(*a), to_y(*b))).collect();
            let dashes = if line.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let _ =
                write!(svg, "<polyline class=\"line s{}\"{dashes} points=\"{}\"/>", number % COLOURS, points.join(" "));
        }
        if let Some(stamp) = self.stamp {
            let _ = write!(
                svg,
                "<text class=\"stamp\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{stamp}</text>",
                WIDTH - RIGHT - 6.0,
                TOP + 18.0
            );
        }
        if legend_rows > 0 {
            self.legend(&mut svg, named);
        }
        svg.push_str("</svg>");
        svg
    }

    fn grid(&self, svg: &mut String, x: &Range, y: &Range) {
        for tick in y.ticks() {
            let at = HEIGHT - BOTTOM - y.share(tick) * (HEIGHT - TOP - BOTTOM);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"soft\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                at + 4.0,
                escaped(&(self.y.format)(tick))
            );
        }
        for tick in x.ticks() {
            let at = LEFT + x.share(tick) * (WIDTH - LEFT - RIGHT);
            let _ = write!(
                svg,
                "<text class=\"soft\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 14.0,
                escaped(&(self.x.format)(tick))
            );
        }
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            self.x.title
        );
    }

    fn legend(&self, svg: &mut String, named: usize) {
        for (number, line) in self.lines.iter().take(named).enumerate() {
            let column = (number % 2) as f64;
            let at = HEIGHT + 8.0 + (number / 2) as f64 * LEGEND_ROW;
            let left = 12.0 + column * (WIDTH / 2.0);
            let _ = write!(
                svg,
                "<rect class=\"f{}\" x=\"{left}\" y=\"{}\" width=\"10\" height=\"4\"/><text x=\"{}\" y=\"{:.1}\">{}</text>",
                number % COLOURS,
                at - 5.0,
                left + 15.0,
                at,
                escaped(&line.name)
            );
        }
    }
}
