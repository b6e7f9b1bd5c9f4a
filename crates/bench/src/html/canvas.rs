//! What all charts have in common: a drawing in memory that becomes part of the page, text in it,
//! and the legend above it.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::paint::{Colour, INK};
use super::text::{escaped, printable};

/// A drawing area that writes SVG into a string.
pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The width of every chart, in its own pixels; the page scales it.
pub(super) const WIDTH: i32 = 760;
/// Of text. The library takes a size for the height of a line.
const SIZE: f64 = 17.0;
/// What a character is wide, more or less: nobody can know without the font.
pub(super) const CHARACTER: i32 = 7;
/// Between two lines of text.
pub(super) const LINE: i32 = 18;

/// Where a text begins, ends or has its middle.
#[derive(Clone, Copy, Debug)]
pub(super) enum Align {
    Left,
    Middle,
    Right,
}

/// How the library is to write text.
pub(super) fn font(align: Align) -> TextStyle<'static> {
    let place = match align {
        Align::Left => HPos::Left,
        Align::Middle => HPos::Center,
        Align::Right => HPos::Right,
    };
    TextStyle {
        font: ("system-ui, sans-serif", SIZE).into(),
        color: INK.rgb().to_backend_color(),
        pos: Pos::new(place, VPos::Center),
    }
}

/// Writes a line of text, its middle at this height.
pub(super) fn write(
    canvas: &Canvas<'_>,
    text: &str,
    at: (i32, i32),
    align: Align,
) -> anyhow::Result<()> {
    let text = Text::new(printable(text), at, font(align));
    Ok(canvas.draw(&text)?)
}

/// A straight line.
pub(super) fn stroke(
    canvas: &Canvas<'_>,
    from: (i32, i32),
    to: (i32, i32),
    colour: Colour,
) -> anyhow::Result<()> {
    let style = colour.rgb().stroke_width(2);
    Ok(canvas.draw(&PathElement::new([from, to], style))?)
}

/// Draws on a canvas of this height. `name` tells those who cannot see it what it is.
pub(super) fn draw(
    name: &str,
    height: i32,
    with: impl FnOnce(&Canvas<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let backend = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32));
        let canvas = backend.into_drawing_area();
        with(&canvas)?;
        canvas.present()?;
    }
    // Inside of a page, the namespace is understood and the size is the page's affair.
    let (_, content) = svg.split_once('>').unwrap_or_default();
    Ok(format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\">{content}",
        escaped(name)
    ))
}

/// Where each entry of a legend begins, and how many lines it has.
pub(super) fn legend(names: &[&str]) -> (Vec<(i32, i32)>, i32) {
    let mut places = Vec::new();
    let (mut x, mut line) = (0, 0);
    for name in names {
        let width = 44 + CHARACTER * name.chars().count() as i32 + 16;
        if x > 0 && x + width > WIDTH {
            (x, line) = (0, line + 1);
        }
        places.push((x, LINE / 2 + line * (LINE + 4)));
        x += width;
    }
    (places, (line + 1) * (LINE + 4))
}
