//! Curves over the number of instances, as SVG that any browser shows.

use std::fmt::Write;

/// A picture.
pub(super) struct Plot<'a> {
    /// The file's name, without its ending.
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    /// Of the values.
    pub(super) unit: &'a str,
    pub(super) curves: Vec<Curve>,
}

/// One line in it.
pub(super) struct Curve {
    pub(super) name: String,
    /// Instances, and the value.
    pub(super) points: Vec<(f64, f64)>,
    /// What it is measured against, drawn thinner.
    pub(super) floor: bool,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 528.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 290.0;
/// Between two names at the ends of curves.
const LINE: f64 = 16.0;
/// Told apart by everybody, whatever colours they see.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

impl Plot<'_> {
    /// The picture, as the text of a file.
    pub(super) fn svg(&self) -> String {
        let mut svg = String::new();
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let (mut numbers, mut most) = (Vec::new(), 0.0_f64);
        for (number, value) in points {
            if !numbers.contains(number) {
                numbers.push(*number);
            }
            most = most.max(*value);
        }
        let axes = Axes::of(numbers, most);
        let written = self
            .head(&mut svg)
            .and_then(|()| axes.draw(&mut svg, self.unit))
            .and_then(|()| self.draw(&mut svg, &axes));
        written.expect("text can be written to memory");
        svg.push_str("</svg>\n");
        svg
    }

    fn head(&self, svg: &mut String) -> std::fmt::Result {
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{}\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{}</text>",
            escaped(self.title),
            escaped(self.title)
        )
    }

    fn draw(&self, svg: &mut String, axes: &Axes) -> std::fmt::Result {
        let ends = self.curves.iter().map(|curve| {
            let last = curve.points.last().map_or(0.0, |(_, value)| *value);
            axes.y(last)
        });
        let labels = spread(&ends.collect::<Vec<_>>());
        for (number, (curve, label)) in self.curves.iter().zip(labels).enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let (width, dashes) = match curve.floor {
                true => ("1.5", " stroke-dasharray=\"5 4\""),
                false => ("2.5", ""),
            };
            let at = |(n, v): &(f64, f64)| format!("{:.1},{:.1}", axes.x(*n), axes.y(*v));
            let line: Vec<_> = curve.points.iter().map(at).collect();
            writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" \
                 stroke-width=\"{width}\"{dashes}/>",
                line.join(" ")
            )?;
            for (n, v) in curve.points.iter().filter(|_| !curve.floor) {
                let (x, y) = (axes.x(*n), axes.y(*v));
                writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
                )?;
            }
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
                RIGHT + 10.0,
                label + 4.0,
                escaped(&curve.name)
            )?;
        }
        Ok(())
    }
}

/// The numbers of instances go by their logarithm, values from nothing on.
struct Axes {
    numbers: Vec<f64>,
    step: f64,
    steps: usize,
}

impl Axes {
    fn of(mut numbers: Vec<f64>, most: f64) -> Axes {
        numbers.sort_by(f64::total_cmp);
        let (step, steps) = steps(most);
        Axes {
            numbers,
            step,
            steps,
        }
    }

    fn x(&self, number: f64) -> f64 {
        let first = self.numbers.first().copied().unwrap_or(1.0).max(1.0).ln();
        let last = self.numbers.last().copied().unwrap_or(1.0).max(1.0).ln();
        match last > first {
            true => LEFT + (number.max(1.0).ln() - first) / (last - first) * (RIGHT - LEFT),
            false => (LEFT + RIGHT) / 2.0,
        }
    }

    fn y(&self, value: f64) -> f64 {
        let most = self.step * self.steps as f64;
        BOTTOM - value / most * (BOTTOM - TOP)
    }

    fn draw(&self, svg: &mut String, unit: &str) -> std::fmt::Result {
        for number in 0..=self.steps {
            let value = self.step * number as f64;
            let y = self.y(value);
            let shown = match self.step < 1.0 {
                true => format!("{value:.2}"),
                false => format!("{value:.0}"),
            };
            writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{shown}</text>",
                LEFT - 8.0,
                y + 4.0
            )?;
        }
        for number in &self.numbers {
            let x = self.x(*number);
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{number:.0}</text>",
                BOTTOM + 18.0
            )?;
        }
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">instances</text>\n\
             <text x=\"{}\" y=\"40\" fill=\"#555\">{}</text>",
            (LEFT + RIGHT) / 2.0,
            BOTTOM + 36.0,
            LEFT,
            escaped(unit)
        )
    }
}

/// The distance of lines, and how many there are above nothing: round numbers, and few of them.
fn steps(most: f64) -> (f64, usize) {
    if most <= 0.0 {
        return (1.0, 1);
    }
    let power = 10.0_f64.powf((most / 5.0).log10().floor());
    let wanted = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = wanted.into_iter().find(|step| most / step <= 5.0);
    let step = step.unwrap_or(10.0 * power);
    (step, ((most / step).ceil() as usize).max(1))
}

/// Heights for names that would be at these, so that none covers another.
fn spread(wanted: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut placed = vec![0.0; wanted.len()];
    let mut free = TOP;
    for (rank, index) in order.iter().enumerate() {
        // There must be room for those below.
        let last = BOTTOM - LINE * (order.len() - 1 - rank) as f64;
        placed[*index] = wanted[*index].max(free).min(last);
        free = placed[*index] + LINE;
    }
    placed
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_at_round_numbers() {
        for (most, step, count) in [
            (0.0, 1.0, 1),
            (1.0, 0.2, 5),
            (7.0, 2.0, 4),
            (84.0, 20.0, 5),
            (100.0, 20.0, 5),
            (1_234.0, 500.0, 3),
        ] {
            let (got, lines) = steps(most);
            assert!(
                (got - step).abs() < 1e-9 && lines == count,
                "{most}: {got} × {lines}"
            );
        }
    }

    #[test]
    fn names_do_not_cover_each_other() {
        let placed = spread(&[100.0, 100.0, 290.0, 290.0, 104.0]);
        let mut sorted = placed.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(
            sorted
                .windows(2)
                .all(|pair| pair[1] - pair[0] >= LINE - 1e-9),
            "{placed:?}"
        );
        assert!(
            sorted.iter().all(|y| (TOP..=BOTTOM).contains(y)),
            "{placed:?}"
        );
    }

    #[test]
    fn a_picture_is_well_formed() {
        let curve = |name: &str, floor| Curve {
            name: name.to_owned(),
            points: vec![(1.0, 50.0), (10.0, 61.5), (100.0, 42.0)],
            floor,
        };
        let svg = Plot {
            name: "rate",
            title: "a < b & \"c\"",
            unit: "volumes/s",
            curves: vec![curve("ours", false), curve("floor", true)],
        }
        .svg();
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
