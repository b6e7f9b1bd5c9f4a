//! What is measured again and again, and which figures come of it.

use super::LiveBenchOptions;
use super::client::JobOutcome;
use super::report::{Goal, LivePoint, Unit};
use super::stage::Stage;
use crate::spread::Spread;
use crate::supervisor::Watcher;

/// Measures once.
pub(super) type Measure = Box<dyn FnMut(&mut Stage) -> anyhow::Result<JobOutcome>>;

/// One measurement.
pub(super) struct Trial {
    pub(super) name: String,
    pub(super) run: Measure,
    pub(super) figures: Vec<Figure>,
}

/// Something that is told of it.
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) value: fn(&JobOutcome) -> f64,
    pub(super) goal: Option<Goal>,
    /// What it is a share of.
    pub(super) of: Option<Of>,
    pub(super) published: &'static [(&'static str, f64)],
    /// Whether it is also told how long single ones took.
    pub(super) has_times: bool,
}

/// What a figure is compared with.
pub(super) enum Of {
    /// Another figure of this run, by its name.
    Figure(&'static str),
    /// What would be ideal.
    Ideal(&'static str, f64),
}

impl Figure {
    /// So many a second.
    pub(super) fn rate(name: impl Into<String>) -> Figure {
        Figure {
            name: name.into(),
            unit: Unit::PerSecond,
            value: JobOutcome::rate,
            goal: None,
            of: None,
            published: &[],
            has_times: false,
        }
    }

    pub(super) fn goal(self, goal: Goal) -> Figure {
        Figure {
            goal: Some(goal),
            ..self
        }
    }

    pub(super) fn of(self, of: Of) -> Figure {
        Figure {
            of: Some(of),
            ..self
        }
    }

    pub(super) fn published(self, published: &'static [(&'static str, f64)]) -> Figure {
        Figure { published, ..self }
    }

    pub(super) fn with_times(self) -> Figure {
        Figure {
            has_times: true,
            ..self
        }
    }
}

/// Measures everything as often as it is asked for, every other time in reverse.
pub(super) fn run_all(
    mut trials: Vec<Trial>,
    options: &LiveBenchOptions,
    watcher: &Watcher<'_>,
    stage: &mut Stage,
) -> anyhow::Result<Vec<LivePoint>> {
    let mut outcomes: Vec<Vec<JobOutcome>> = vec![Vec::new(); trials.len()];
    for round in 0..options.repeat {
        let mut order: Vec<usize> = (0..trials.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            watcher.check()?;
            let trial = &mut trials[index];
            let (round, of) = (round + 1, options.repeat);
            (watcher.note)(&format!("{round} of {of}: {}", trial.name));
            outcomes[index].push((trial.run)(stage)?);
            stage.check()?;
        }
    }
    let mut points: Vec<LivePoint> = Vec::new();
    let mut shares = Vec::new();
    for (trial, outcomes) in trials.into_iter().zip(&outcomes) {
        let spread = |value: fn(&JobOutcome) -> f64| {
            Spread::from_values(outcomes.iter().map(value).collect())
        };
        for figure in trial.figures {
            let times = |value| figure.has_times.then(|| spread(value).median);
            points.push(LivePoint {
                value: spread(figure.value),
                unit: figure.unit,
                median_us: times(|it| it.median_us),
                p99_us: times(|it| it.p99_us),
                missed: spread(JobOutcome::missed_share).median,
                share_of: None,
                published: figure.published.to_vec(),
                goal: figure.goal,
                name: figure.name,
            });
            shares.push(figure.of);
        }
    }
    let medians: Vec<(String, f64)> = points
        .iter()
        .map(|it| (it.name.clone(), it.value.median))
        .collect();
    for (point, of) in points.iter_mut().zip(shares) {
        let whole = match of {
            None => continue,
            Some(Of::Ideal(what, value)) => (what, value),
            Some(Of::Figure(name)) => {
                let found = medians.iter().find(|(it, _)| it == name);
                (name, found.map_or(0.0, |(_, value)| *value))
            }
        };
        let (what, value) = whole;
        point.share_of = Some((what.to_owned(), point.value.median / value));
    }
    Ok(points)
}
