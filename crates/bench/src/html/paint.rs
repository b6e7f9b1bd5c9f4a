//! Colours, marks and textures of the charts, in light and dark.
//!
//! A chart is drawn in the colours of light; in dark, the page's style replaces each by its
//! partner. No colour stands alone: lines have marks of their own shape, and the parts of a bar
//! a texture of their own.

use std::fmt::Write;

use plotters::style::RGBColor;

use crate::report::TimedOperation;

/// A colour, as it is drawn and as it is shown in dark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colour {
    light: (u8, u8, u8),
    dark: &'static str,
}

impl Colour {
    const fn new(light: (u8, u8, u8), dark: &'static str) -> Colour {
        Colour { light, dark }
    }

    /// As it is drawn.
    pub(super) fn rgb(self) -> RGBColor {
        RGBColor(self.light.0, self.light.1, self.light.2)
    }

    /// As it is written in SVG.
    fn name(self) -> String {
        let (red, green, blue) = self.light;
        format!("#{red:02X}{green:02X}{blue:02X}")
    }
}

/// Text and axes.
pub(super) const INK: Colour = Colour::new((0x1A, 0x1A, 0x1A), "#E8E8E8");
/// Lines behind everything.
pub(super) const FAINT: Colour = Colour::new((0xD9, 0xD9, 0xD9), "#3C4044");

const DOWNLOAD: Colour = Colour::new((0x00, 0x5F, 0xA3), "#6BB8F0");
const UPDATE: Colour = Colour::new((0xB8, 0x4A, 0x00), "#FF9F5A");
const DELETE: Colour = Colour::new((0x8F, 0x2F, 0x78), "#E59AD0");
const INSERT: Colour = Colour::new((0x00, 0x73, 0x55), "#52D0A4");
const EMPTY: Colour = Colour::new((0x5A, 0x5A, 0x5A), "#B9B9B9");
const UPLOAD: Colour = Colour::new((0x7A, 0x5B, 0x00), "#E8C252");

/// The shape at each point of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Down,
    Up,
    Disc,
    Ring,
    Square,
    Cross,
}

/// How an operation's line looks.
pub(super) fn for_operation(operation: TimedOperation) -> (Colour, Mark) {
    match operation {
        TimedOperation::Download => (DOWNLOAD, Mark::Down),
        TimedOperation::Update => (UPDATE, Mark::Disc),
        TimedOperation::Delete => (DELETE, Mark::Cross),
        TimedOperation::Insert => (INSERT, Mark::Square),
        TimedOperation::Empty => (EMPTY, Mark::Ring),
        TimedOperation::Upload => (UPLOAD, Mark::Up),
    }
}

/// A part of a bar: its colour, and what is drawn over it, in a square of eight by eight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texture {
    pub(super) colour: Colour,
    strokes: &'static str,
}

/// As many as a bar has parts at most.
pub(super) const TEXTURES: [Texture; 7] = [
    texture((0x7A, 0xA6, 0xC9), "#3E6E93", ""),
    texture((0xE3, 0xB5, 0x8C), "#8F5E34", "M0 8L8 0"),
    texture((0x9F, 0xCF, 0xB7), "#3A7A5C", "M0 2H8M0 6H8"),
    texture((0xE6, 0xE6, 0xE6), "#4A4E52", "M3 4H5"),
    texture((0xD3, 0xA9, 0xC8), "#7C4A6E", "M2 0V8M6 0V8"),
    texture((0xE2, 0xD3, 0x86), "#786922", "M0 0L8 8"),
    texture((0xC4, 0x91, 0x8A), "#8A4A44", "M0 0L8 8M0 8L8 0"),
];

const fn texture(light: (u8, u8, u8), dark: &'static str, strokes: &'static str) -> Texture {
    Texture {
        colour: Colour::new(light, dark),
        strokes,
    }
}

/// The rules that show textures, and everything in dark.
pub(super) fn style() -> String {
    let lines = [INK, FAINT, DOWNLOAD, UPDATE, DELETE, INSERT, EMPTY, UPLOAD];
    let mut out = String::new();
    for (number, texture) in TEXTURES.iter().enumerate() {
        let name = texture.colour.name();
        let _ = writeln!(
            out,
            ".chart rect[fill=\"{name}\"] {{ fill: url(#texture-{number}); }}\n\
             .texture-{number} {{ fill: {name}; }}"
        );
    }
    let _ = writeln!(out, ".strokes {{ stroke: {}; fill: none; }}", INK.name());
    out.push_str("@media (prefers-color-scheme: dark) {\n");
    for colour in lines {
        let (name, dark) = (colour.name(), colour.dark);
        let _ = writeln!(
            out,
            ".chart [fill=\"{name}\"] {{ fill: {dark}; }}\n\
             .chart [stroke=\"{name}\"] {{ stroke: {dark}; }}"
        );
    }
    for (number, texture) in TEXTURES.iter().enumerate() {
        let _ = writeln!(
            out,
            ".texture-{number} {{ fill: {}; }}",
            texture.colour.dark
        );
    }
    let _ = writeln!(out, ".strokes {{ stroke: {}; }}\n}}", INK.dark);
    out
}

/// The textures, which every chart of the page refers to.
pub(super) fn textures() -> String {
    let mut out =
        String::from("<svg class=\"textures\" width=\"0\" height=\"0\" aria-hidden=\"true\">\n");
    for (number, texture) in TEXTURES.iter().enumerate() {
        let _ = writeln!(
            out,
            "<pattern id=\"texture-{number}\" width=\"8\" height=\"8\" \
             patternUnits=\"userSpaceOnUse\"><rect class=\"texture-{number}\" width=\"8\" \
             height=\"8\"/><path class=\"strokes\" d=\"{}\"/></pattern>",
            texture.strokes
        );
    }
    out.push_str("</svg>\n");
    out
}
