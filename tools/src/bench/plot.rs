//! Plots as SVG text: bars with their spread, and latencies by percentile on logarithmic axes.
//!
//! Coordinates are pixels from the upper left. Colours and fonts come from the page's style sheet, by the class
//! of a series (`s0`, `s1`, ...).

use std::fmt::Write;

use super::document::Spread;

const WIDTH: f64 = 720.0;
const LABEL_WIDTH: f64 = 210.0;
const VALUE_WIDTH: f64 = 150.0;
const BAR_HEIGHT: f64 = 18.0;
const BAR_STEP: f64 = 28.0;

const CURVE_HEIGHT: f64 = 320.0;
const MARGIN: f64 = 60.0;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Number of its series, for the colour.
    pub series: usize,
    /// Where it ends, and the line over its end.
    pub spread: Spread,
}

/// One line of a latency plot.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Number of its series, for the colour.
    pub series: usize,
    /// Quantile and microseconds, ascending; the longest last, with the quantile 1.
    pub points: Vec<(f64, f64)>,
    /// How many durations it is made of.
    pub number: u64,
}

/// Horizontal bars from zero, each up to its median, with a line from the lowest to the highest.
pub fn bars(bars: &[Bar], decimals: usize) -> String {
    let top = bars.iter().map(|bar| bar.spread.max).fold(0.0, f64::max);
    let room = WIDTH - LABEL_WIDTH - VALUE_WIDTH;
    let x = |value: f64| {
        LABEL_WIDTH
            + if top > 0.0 {
                value.max(0.0) / top * room
            } else {
                0.0
            }
    };
    let height = BAR_STEP * bars.len() as f64 + 8.0;
    let mut out = open(height);
    for (number, bar) in bars.iter().enumerate() {
        let Spread { median, min, max } = bar.spread;
        let y = 6.0 + BAR_STEP * number as f64;
        let middle = y + BAR_HEIGHT / 2.0;
        let (width, series) = (x(median) - LABEL_WIDTH, bar.series);
        text(&mut out, LABEL_WIDTH - 8.0, middle + 4.0, "end", &bar.name);
        let _ = write!(
            out,
            r#"<rect class="s{series}" x="{LABEL_WIDTH}" y="{y:.1}" width="{width:.1}" height="{BAR_HEIGHT}"><title>{}: median {median:.decimals$}, lowest {min:.decimals$}, highest {max:.decimals$}</title></rect>"#,
            escape(&bar.name)
        );
        if max > min {
            line(&mut out, "spread", (x(min), middle), (x(max), middle));
        }
        let value = format!("{median:.decimals$}");
        text(&mut out, x(max) + 8.0, middle + 4.0, "start", &value);
    }
    out.push_str("</svg>\n");
    out
}

/// Latencies in microseconds over percentiles: every step to the right has a tenth of all beyond it that the
/// step before had.
pub fn curves(curves: &[Curve]) -> String {
    let all = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    let lowest = all().fold(f64::INFINITY, f64::min).max(0.1);
    let highest = all().fold(0.1, f64::max);
    let (bottom, top) = (lowest.log10().floor(), highest.log10().ceil());
    let top = if top > bottom { top } else { bottom + 1.0 };
    let nines = curves
        .iter()
        .map(|curve| nines_of(1.0, curve.number))
        .fold(1.0, f64::max);
    let x = |nines_here: f64| MARGIN + nines_here / nines * (WIDTH - MARGIN - 20.0);
    let floor = CURVE_HEIGHT - 40.0;
    let y = |us: f64| floor - (us.max(0.1).log10() - bottom) / (top - bottom) * (floor - 12.0);

    let mut out = open(CURVE_HEIGHT);
    for decade in bottom as i32..=top as i32 {
        let us = 10f64.powi(decade);
        line(&mut out, "grid", (MARGIN, y(us)), (WIDTH - 20.0, y(us)));
        text(&mut out, MARGIN - 6.0, y(us) + 4.0, "end", &duration(us));
    }
    for step in 0..=nines as u32 {
        let at = x(step.into());
        line(&mut out, "grid", (at, 12.0), (at, floor));
        text(&mut out, at, floor + 18.0, "middle", &percentile(step));
    }
    for curve in curves {
        let place = |(quantile, us): &(f64, f64)| {
            format!("{:.1},{:.1}", x(nines_of(*quantile, curve.number)), y(*us))
        };
        let points: Vec<String> = curve.points.iter().map(place).collect();
        let _ = write!(
            out,
            r#"<polyline class="s{}" points="{}"><title>{}</title></polyline>"#,
            curve.series,
            points.join(" "),
            escape(&curve.name)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// 0 for 0, 1 for 90 %, 2 for 99 %; the longest of `number` counts as the one beyond all others.
fn nines_of(quantile: f64, number: u64) -> f64 {
    let beyond = (1.0 - quantile).max(1.0 / number.max(1) as f64);
    -beyond.log10()
}

fn percentile(nines: u32) -> String {
    match nines {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        more => format!("99.{} %", "9".repeat(more as usize - 2)),
    }
}

fn duration(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", us / 1e6),
        us if us >= 1e3 => format!("{} ms", us / 1e3),
        us => format!("{us} us"),
    }
}

fn open(height: f64) -> String {
    format!(r#"<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">"#)
}

fn line(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = write!(
        out,
        r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escape(text);
    let _ = write!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
    );
}

/// Text as it may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |name: &str, median, min, max| Bar {
            name: name.into(),
            series: 1,
            spread: Spread { median, min, max },
        };
        let svg = bars(&[bar("a<b", 50.0, 40.0, 100.0), bar("c", 25.0, 25.0, 25.0)], 0);
        let room = WIDTH - LABEL_WIDTH - VALUE_WIDTH;
        assert!(svg.contains(&format!("width=\"{:.1}\"", room / 2.0)), "{svg}");
        assert!(svg.contains(&format!("width=\"{:.1}\"", room / 4.0)), "{svg}");
        assert!(svg.contains("a&lt;b: median 50, lowest 40, highest 100"), "{svg}");
        assert_eq!(
            svg.matches("class=\"spread\"").count(),
            1,
            "one value has no spread"
        );
        assert!(bars(&[bar("none", 0.0, 0.0, 0.0)], 0).contains("width=\"0.0\""));
    }

    #[test]
    fn curves_rise_to_the_right() {
        let curve = Curve {
            name: "a".into(),
            series: 0,
            points: vec![(0.0, 10.0), (0.9, 100.0), (0.99, 1000.0), (1.0, 10_000.0)],
            number: 1000,
        };
        let svg = curves(&[curve]);
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let places: Vec<(f64, f64)> = points
            .split(' ')
            .map(|place| place.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        let steps: Vec<f64> = places.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(
            steps
                .iter()
                .all(|step| (step - steps[0]).abs() < 0.2 && *step > 100.0),
            "{places:?}"
        );
        assert!(places.windows(2).all(|pair| pair[1].1 < pair[0].1), "{places:?}");
        for label in ["99.9 %", "10 us", "10 ms"] {
            assert!(svg.contains(&format!(">{label}<")), "{label}: {svg}");
        }
    }
}
