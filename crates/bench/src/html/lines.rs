//! Charts of lines: a rate against what varied, with the distance from the smallest to the
//! largest of the repeats, and published figures as dashed lines.

use plotters::prelude::*;

use super::canvas::{Align, CHARACTER, Canvas, LINE, WIDTH, draw, font, legend, stroke, write};
use super::paint::{Colour, FAINT, INK, Mark};
use super::text::number;
use crate::report::Point;
use crate::spread::Spread;

/// What varied: the places along the axis below.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    title: String,
    places: Vec<ChartPoint>,
}

#[derive(Clone, Debug)]
struct ChartPoint {
    label: String,
    value: Option<f64>,
    /// From 0 at the left to 1.
    at: f64,
}

/// One line.
#[derive(Clone, Debug)]
pub(super) struct ChartLine {
    pub(super) name: String,
    pub(super) colour: Colour,
    pub(super) mark: Mark,
    /// Labels of places on the axis, and what was measured there.
    pub(super) points: Vec<(String, Spread)>,
}

/// A published figure.
#[derive(Clone, Debug)]
pub(super) struct PublishedFigure {
    pub(super) name: String,
    pub(super) colour: Colour,
    pub(super) mark: Mark,
    pub(super) value: f64,
}

impl Axis {
    /// Numbers lie where they belong, far apart ones by their logarithm; what is no number stands
    /// to the right of them, in its order.
    pub(super) fn from_points<'a>(title: &str, points: impl Iterator<Item = &'a Point>) -> Axis {
        let mut places: Vec<ChartPoint> = Vec::new();
        for point in points {
            if !places.iter().any(|it| it.label == point.label) {
                places.push(ChartPoint {
                    label: point.label.clone(),
                    value: point.value,
                    at: 0.0,
                });
            }
        }
        places.sort_by(|a, b| match (a.value, b.value) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => a.is_none().cmp(&b.is_none()),
        });
        let values: Vec<f64> = places.iter().filter_map(|it| it.value).collect();
        let steps = places.len().saturating_sub(1).max(1) as f64;
        let share = values.len().saturating_sub(1) as f64 / steps;
        for (index, place) in places.iter_mut().enumerate() {
            place.at = match place.value {
                Some(value) => scaled(value, &values) * share,
                None => index as f64 / steps,
            };
        }
        if let [only] = &mut places[..] {
            only.at = 0.5;
        }
        Axis {
            title: title.into(),
            places,
        }
    }

    fn place(&self, label: &str) -> Option<&ChartPoint> {
        self.places.iter().find(|it| it.label == label)
    }
}

/// From 0 at the smallest of sorted values to 1 at the largest.
fn scaled(value: f64, values: &[f64]) -> f64 {
    let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
        return 0.0;
    };
    let is_wide = min > 0.0 && max / min >= 10.0;
    let scale = |it: f64| if is_wide { it.log10() } else { it };
    let width = scale(max) - scale(min);
    match width > 0.0 {
        true => (scale(value) - scale(min)) / width,
        false => 0.0,
    }
}

const LEFT: i32 = 90;
const RIGHT: i32 = 40;
const PLOT: i32 = 320;

/// The chart.
pub(super) fn chart(
    name: &str,
    axis: &Axis,
    lines: &[ChartLine],
    references: &[PublishedFigure],
) -> anyhow::Result<String> {
    let names = lines.iter().map(|it| it.name.as_str());
    let names: Vec<&str> = names
        .chain(references.iter().map(|it| it.name.as_str()))
        .collect();
    let (entries, legend_height) = legend(&names);
    let labels = labels(axis);
    let label_lines = labels.iter().map(|(_, lines)| lines.len()).max();
    let below = 14 + LINE * (label_lines.unwrap_or(1) as i32 + 1) + 6;
    let height = legend_height + 10 + PLOT + below;
    draw(name, height, |canvas| {
        for (line, &at) in lines.iter().zip(&entries) {
            entry(canvas, &line.name, (line.colour, line.mark), at, false)?;
        }
        for (it, &at) in references.iter().zip(&entries[lines.len()..]) {
            entry(canvas, &it.name, (it.colour, it.mark), at, true)?;
        }
        let highest = lines.iter().flat_map(|line| &line.points);
        let highest = highest.map(|(_, spread)| spread.max);
        let highest = highest.chain(references.iter().map(|it| it.value));
        let highest = highest.fold(0.0, f64::max);
        let top = if highest > 0.0 { highest * 1.08 } else { 1.0 };
        let mut plot = ChartBuilder::on(canvas)
            .margin_top(legend_height + 10)
            .margin_right(RIGHT)
            .x_label_area_size(below)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(-0.04f64..1.04, 0f64..top)?;
        plot.configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .axis_style(INK.rgb())
            .bold_line_style(FAINT.rgb())
            .light_line_style(TRANSPARENT)
            .y_labels(6)
            .y_label_style(font(Align::Right))
            .y_label_formatter(&|value| number(*value))
            .draw()?;
        let at = |x: f64, y: f64| plot.backend_coord(&(x, y));
        stroke(canvas, at(-0.04, 0.0), at(1.04, 0.0), INK)?;
        for (place, lines) in &labels {
            let (x, y) = at(place.at, 0.0);
            stroke(canvas, (x, y), (x, y + 5), INK)?;
            for (number, line) in lines.iter().enumerate() {
                let y = y + 16 + LINE * number as i32;
                write(canvas, line, (x, y), Align::Middle)?;
            }
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2;
        write(canvas, &axis.title, (middle, height - LINE), Align::Middle)?;
        for reference in references {
            let (left, y) = at(-0.04, reference.value);
            let (right, _) = at(1.04, reference.value);
            dashes(canvas, (left, right), y, reference.colour)?;
            mark(canvas, reference.mark, (right, y), reference.colour)?;
        }
        for line in lines {
            let mut previous = None;
            for (place, spread) in places(axis, line) {
                let here = at(place.at, spread.median);
                // What is no number is no further along than its neighbour.
                if let (Some(previous), Some(_)) = (previous, place.value) {
                    stroke(canvas, previous, here, line.colour)?;
                }
                previous = place.value.map(|_| here);
                if spread.max > spread.min {
                    let ends = (at(place.at, spread.min), at(place.at, spread.max));
                    stroke(canvas, ends.0, ends.1, line.colour)?;
                }
                mark(canvas, line.mark, here, line.colour)?;
            }
        }
        Ok(())
    })
}

/// The points of a line along the axis.
fn places<'a>(axis: &'a Axis, line: &'a ChartLine) -> Vec<(&'a ChartPoint, Spread)> {
    let points = line.points.iter();
    let places = points.filter_map(|(label, spread)| Some((axis.place(label)?, *spread)));
    let mut places: Vec<(&ChartPoint, Spread)> = places.collect();
    places.sort_by(|(a, _), (b, _)| a.at.total_cmp(&b.at));
    places
}

/// The labels below the axis, in lines as short as their place is narrow. Those that would cover
/// another are left out: the table has every point.
fn labels(axis: &Axis) -> Vec<(&ChartPoint, Vec<String>)> {
    let width = f64::from(WIDTH - LEFT - RIGHT) / 1.08;
    let share = width / axis.places.len().max(1) as f64;
    let most = (share as i32 / CHARACTER).max(8) as usize;
    let mut end = f64::MIN;
    let mut labels = Vec::new();
    for place in &axis.places {
        let lines = wrapped(&place.label, most);
        let longest = lines.iter().map(|it| it.chars().count()).max();
        let half = f64::from(CHARACTER) * longest.unwrap_or(0) as f64 / 2.0;
        let middle = place.at * width;
        if middle - half > end {
            end = middle + half + 4.0;
            labels.push((place, lines));
        }
    }
    labels
}

/// A text in lines of at most so many characters, as far as its words allow.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn entry(
    canvas: &Canvas<'_>,
    name: &str,
    (colour, shape): (Colour, Mark),
    (x, y): (i32, i32),
    is_dashed: bool,
) -> anyhow::Result<()> {
    match is_dashed {
        true => dashes(canvas, (x, x + 34), y, colour)?,
        false => stroke(canvas, (x, y), (x + 34, y), colour)?,
    }
    mark(canvas, shape, (x + 17, y), colour)?;
    write(canvas, name, (x + 42, y), Align::Left)
}

fn dashes(
    canvas: &Canvas<'_>,
    (left, right): (i32, i32),
    y: i32,
    colour: Colour,
) -> anyhow::Result<()> {
    for x in (left..right).step_by(12) {
        stroke(canvas, (x, y), (right.min(x + 7), y), colour)?;
    }
    Ok(())
}

fn mark(canvas: &Canvas<'_>, mark: Mark, (x, y): (i32, i32), colour: Colour) -> anyhow::Result<()> {
    let (filled, open) = (colour.rgb().filled(), colour.rgb().stroke_width(2));
    match mark {
        Mark::Disc => canvas.draw(&Circle::new((x, y), 5, filled))?,
        Mark::Ring => canvas.draw(&Circle::new((x, y), 5, open))?,
        Mark::Square => canvas.draw(&Rectangle::new([(x - 5, y - 5), (x + 5, y + 5)], filled))?,
        Mark::Up => {
            let corners = vec![(x - 6, y + 5), (x + 6, y + 5), (x, y - 6)];
            canvas.draw(&Polygon::new(corners, filled))?;
        }
        Mark::Down => {
            let corners = vec![(x - 6, y - 5), (x + 6, y - 5), (x, y + 6)];
            canvas.draw(&Polygon::new(corners, filled))?;
        }
        Mark::Cross => {
            stroke(canvas, (x - 5, y - 5), (x + 5, y + 5), colour)?;
            stroke(canvas, (x - 5, y + 5), (x + 5, y - 5), colour)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(label: &str, value: Option<f64>) -> Point {
        Point {
            label: label.into(),
            value,
            ..Point::default()
        }
    }

    fn places(points: &[Point]) -> Vec<(String, f64)> {
        let axis = Axis::from_points("", points.iter());
        let places = axis.places.into_iter();
        places.map(|it| (it.label, it.at)).collect()
    }

    #[test]
    fn numbers_lie_where_they_belong_and_words_to_the_right() {
        let points = [
            point("auto", None),
            point("100", Some(100.0)),
            point("1", Some(1.0)),
            point("10", Some(10.0)),
            point("100", Some(100.0)),
        ];
        let share = 2.0 / 3.0;
        assert_eq!(
            places(&points),
            [
                ("1".into(), 0.0),
                ("10".into(), share / 2.0),
                ("100".into(), share),
                ("auto".into(), 1.0)
            ]
        );
        // Zero has no logarithm.
        let points = [point("0 s", Some(0.0)), point("50 s", Some(50.0))];
        assert_eq!(places(&points), [("0 s".into(), 0.0), ("50 s".into(), 1.0)]);
        assert_eq!(places(&[point("7", Some(7.0))]), [("7".into(), 0.5)]);
        assert_eq!(places(&[]), []);
    }

    #[test]
    fn labels_that_would_cover_each_other_are_left_out() {
        let points: Vec<Point> = [1_000.0, 1_001.0, 9_000.0]
            .map(|value| point(&value.to_string(), Some(value)))
            .to_vec();
        let axis = Axis::from_points("", points.iter());
        let shown: Vec<&str> = labels(&axis)
            .iter()
            .map(|(place, _)| place.label.as_str())
            .collect();
        assert_eq!(shown, ["1000", "9000"]);
        assert_eq!(
            wrapped("limit 2, after 0.05 s", 10),
            ["limit 2,", "after 0.05", "s"]
        );
    }
}
