//! Charts of bars in parts: where the time of a sync went, and whose processor time it took.

use plotters::prelude::*;

use super::canvas::{Align, LINE, WIDTH, draw, font, legend, write};
use super::paint::{FAINT, INK, TEXTURES};
use super::text::number;

/// Bars that stand together under one title.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) title: String,
    pub(super) bars: Vec<Bar>,
}

/// One bar, with a value for each part.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) values: Vec<f64>,
}

const LEFT: i32 = 160;
/// Room for the sum behind the longest bar.
const RIGHT: i32 = 90;
const BELOW: i32 = 40;
/// A bar, with the space to the next one.
const STEP: i32 = 24;

/// The chart. Parts follow each other in the order of the legend.
pub(super) fn chart(
    name: &str,
    unit: &str,
    parts: &[&str],
    groups: &[Group],
) -> anyhow::Result<String> {
    let (entries, legend_height) = legend(parts);
    let rows: usize = groups.iter().map(|group| group.bars.len()).sum();
    let titles = groups.len() as i32 * (LINE + 10);
    let plot_height = titles + STEP * rows as i32;
    let top = legend_height + 10;
    let bars = groups.iter().flat_map(|group| &group.bars);
    let longest = bars.map(|bar| bar.values.iter().sum()).fold(0.0, f64::max);
    let longest = if longest > 0.0 { longest } else { 1.0 };
    draw(name, top + plot_height + BELOW, |canvas| {
        for ((part, texture), &(x, y)) in parts.iter().zip(&TEXTURES).zip(&entries) {
            let place = [(x, y - 7), (x + 34, y + 7)];
            canvas.draw(&Rectangle::new(place, texture.colour.rgb().filled()))?;
            canvas.draw(&Rectangle::new(place, INK.rgb()))?;
            write(canvas, part, (x + 42, y), Align::Left)?;
        }
        let mut plot = ChartBuilder::on(canvas)
            .margin_top(top)
            .margin_right(RIGHT)
            .x_label_area_size(BELOW)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0f64..longest, 0f64..1.0)?;
        plot.configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .axis_style(INK.rgb())
            .bold_line_style(FAINT.rgb())
            .light_line_style(TRANSPARENT)
            .x_labels(6)
            .x_label_style(font(Align::Middle))
            .x_label_formatter(&|value| number(*value))
            .draw()?;
        write(
            canvas,
            unit,
            (WIDTH - RIGHT + 12, top + plot_height + 16),
            Align::Left,
        )?;
        let x = |value: f64| plot.backend_coord(&(value, 0.0)).0;
        let mut y = top;
        for group in groups {
            write(canvas, &group.title, (0, y + LINE / 2 + 8), Align::Left)?;
            y += LINE + 10;
            for bar in &group.bars {
                let middle = y + STEP / 2;
                write(canvas, &bar.name, (LEFT - 8, middle), Align::Right)?;
                let mut sum = 0.0;
                for (value, texture) in bar.values.iter().zip(&TEXTURES) {
                    let place = [(x(sum), middle - 8), (x(sum + value), middle + 8)];
                    sum += value;
                    if place[0].0 < place[1].0 {
                        canvas.draw(&Rectangle::new(place, texture.colour.rgb().filled()))?;
                        canvas.draw(&Rectangle::new(place, INK.rgb()))?;
                    }
                }
                write(canvas, &number(sum), (x(sum) + 6, middle), Align::Left)?;
                y += STEP;
            }
        }
        Ok(())
    })
}
