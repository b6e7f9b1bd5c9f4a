//! The page of a measure of the live layer: each value beside what others have published.

use super::bars::{Bar, Group, chart};
use super::text::number;
use super::{figure, head, known, paragraph, push_table};
use crate::live::{Goal, LivePoint, LiveReport, Unit};

/// The page.
///
/// # Errors
/// A chart cannot be drawn, which would be a mistake of ours.
pub fn live_html(report: &LiveReport) -> anyhow::Result<String> {
    let mut out = head(report.scenario, &report.machine);
    out.push_str("<h2>Results</h2>\n");
    results(&mut out, report);
    for unit in [
        Unit::PerSecond,
        Unit::Milliseconds,
        Unit::Kib,
        Unit::CorePercent,
    ] {
        let of_unit = report.points.iter().filter(|it| it.unit == unit);
        let groups: Vec<Group> = of_unit.map(group).collect();
        if groups.is_empty() {
            continue;
        }
        let parts = ["measured here", "published by others", "goal"];
        let chart = chart(unit.text(), unit.text(), &parts, &groups)?;
        let caption = "The published figures are the reference lines: of other programs on such a \
                       machine, and of papers on machines of their own. Compare with care.";
        figure(&mut out, unit.title(), caption, &chart);
    }
    known(&mut out, &report.machine);
    out.push_str("</body>\n</html>\n");
    Ok(out)
}

fn results(out: &mut String, report: &LiveReport) {
    let titles = [
        "what", "unit", "median", "least", "most", "share", "of", "missed", "goal", "reached",
    ];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for point in &report.points {
        let share = point.share_of.as_ref();
        lines.push(vec![
            point.name.clone(),
            point.unit.text().into(),
            number(point.value.median),
            number(point.value.min),
            number(point.value.max),
            or_dash(share.map(|(_, share)| format!("{share:.2}"))),
            or_dash(share.map(|(of, _)| of.clone())),
            format!("{:.1} %", point.missed * 100.0),
            or_dash(point.goal.map(|goal| goal.to_string())),
            or_dash(
                point
                    .is_reached()
                    .map(|it| if it { "yes" } else { "no" }.into()),
            ),
        ]);
    }
    push_table(out, "Results", &lines, 2);
    paragraph(
        out,
        "Missed are events that did not come because their subscriber was too slow.",
    );
}

fn group(point: &LivePoint) -> Group {
    let bar = |name: &str, part: usize, value: f64| {
        let mut values = vec![0.0; 3];
        values[part] = value;
        Bar {
            name: name.into(),
            values,
        }
    };
    let mut bars = vec![bar("here", 0, point.value.median)];
    for (who, value) in &point.published {
        bars.push(bar(who, 1, *value));
    }
    if let Some(Goal::AtLeast(value) | Goal::AtMost(value)) = point.goal {
        bars.push(bar("goal", 2, value));
    }
    Group {
        title: point.name.clone(),
        bars,
    }
}
