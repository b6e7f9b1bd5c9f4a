//! `[images]`: files from which new remotes begin, kept fresh by the server, as they are configured.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tidewater_centre::GivenPartitions;

use super::text;
use crate::error::ServerError;

/// Where they are if nothing is said.
const FOLDER: &str = "images";

/// How old they become if nothing is said.
const EVERY: Duration = Duration::from_secs(3_600);

/// The least time between two of the same.
const SOONEST: Duration = Duration::from_secs(1);

/// `[images]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagesConfig {
    /// Where the files are.
    pub folder: PathBuf,
    /// So often each is made anew.
    pub every: Duration,
    /// What there is.
    pub images: Vec<ImageConfig>,
}

/// `[[images.image]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageConfig {
    /// What its files are called.
    pub name: String,
    /// Of which publication.
    pub publication: String,
    /// Which rows.
    pub rows: ImageRows,
    /// Whether anybody may fetch it.
    pub public: bool,
}

/// Which rows of a publication are in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageRows {
    /// What a user holds.
    Of(String),
    /// These partitions, and what everybody gets.
    In(GivenPartitions),
}

/// What the users of partitions' images are called begins with this.
const OF_IMAGES: &str = "image: ";

/// Whether a user is one as whom nobody signs in with more than an image's own credential.
pub(crate) fn is_of_images(user: &str) -> bool {
    user.starts_with(OF_IMAGES)
}

impl ImageRows {
    /// The user of the image's own remote. Nobody signs in as the user of partitions.
    pub fn user(&self) -> String {
        match self {
            ImageRows::Of(user) => user.clone(),
            ImageRows::In(given) if given.values.is_empty() => format!("{OF_IMAGES}everyone"),
            ImageRows::In(given) => {
                let mut values: Vec<_> = given.values.iter().collect();
                values.sort();
                let values = values.iter().map(|(name, value)| format!("{name}={value}"));
                format!("{OF_IMAGES}{}", values.collect::<Vec<_>>().join(" "))
            }
        }
    }

    /// Reads partitions, each as `column=value`.
    ///
    /// # Errors
    /// One of them is none: that.
    pub fn of_partitions(partitions: &[String]) -> Result<ImageRows, &str> {
        let values = partitions.iter().map(|it| match it.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(it.as_str()),
        });
        let values = values.collect::<Result<_, _>>()?;
        Ok(ImageRows::In(GivenPartitions { values }))
    }
}

/// Whether an image can be called so: as a part of file names and of addresses.
pub fn is_image_name(name: &str) -> bool {
    let fits = |it: u8| it.is_ascii_alphanumeric() || b"-_".contains(&it);
    !name.is_empty() && name.len() <= 100 && name.bytes().all(fits)
}

#[derive(Deserialize)]
pub(super) struct RawImages {
    folder: Option<PathBuf>,
    every: Option<String>,
    #[serde(default)]
    image: Vec<RawImage>,
}

#[derive(Deserialize)]
struct RawImage {
    name: Option<String>,
    publication: Option<String>,
    user: Option<String>,
    #[serde(default)]
    partitions: Vec<String>,
    #[serde(default)]
    everyone: bool,
    #[serde(default)]
    public: bool,
}

impl RawImages {
    /// `published`: the publications of the same configuration.
    pub(super) fn read(self, published: &[&str]) -> Result<ImagesConfig, ServerError> {
        let every = match self.every.as_deref() {
            None => EVERY,
            Some(span) => text::duration(span)
                .filter(|it| *it >= SOONEST)
                .ok_or_else(|| {
                    ServerError::configuration(
                        format!("images.every is {span:?}"),
                        "write every = \"1h\", with at least a second",
                    )
                })?,
        };
        if self.image.is_empty() {
            return Err(ServerError::configuration(
                "[images] names no image",
                "write [[images.image]] with name, publication and user, partitions or everyone",
            ));
        }
        let images = self.image.into_iter().map(|it| it.read(published));
        let images: Vec<ImageConfig> = images.collect::<Result<_, _>>()?;
        super::raw::check_names("images.image", images.iter().map(|it| &it.name))?;
        Ok(ImagesConfig {
            folder: self.folder.unwrap_or_else(|| FOLDER.into()),
            every,
            images,
        })
    }
}

impl RawImage {
    fn read(self, published: &[&str]) -> Result<ImageConfig, ServerError> {
        let name = self.name.unwrap_or_default();
        if !is_image_name(&name) {
            return Err(ServerError::configuration(
                format!("images.image.name is {name:?}"),
                "write name = \"NAME\", of letters, digits, - and _",
            ));
        }
        let missing = |key: &str, what: &str| {
            ServerError::configuration(
                format!("[[images.image]] {name:?} has no {key}"),
                format!("write {key} = \"NAME\", {what}"),
            )
        };
        let publication = self.publication.filter(|it| !it.is_empty());
        let publication =
            publication.ok_or_else(|| missing("publication", "of which the image is"))?;
        // A configuration without publications is of a server that serves what others deploy.
        if !published.is_empty() && !published.contains(&publication.as_str()) {
            let key = "images.image.publication";
            return Err(super::raw::choice(key, &publication, published));
        }
        let user = self.user.filter(|it| !it.is_empty());
        let rows = match (user, &self.partitions[..], self.everyone) {
            (Some(user), [], false) => ImageRows::Of(user),
            (None, [], true) => ImageRows::In(GivenPartitions::default()),
            (None, partitions @ [_, ..], false) => {
                ImageRows::of_partitions(partitions).map_err(|wrong| {
                    ServerError::configuration(
                        format!("images.image.partitions has {wrong:?}"),
                        "write partitions = [\"COLUMN=VALUE\"]",
                    )
                })?
            }
            (None, [], false) => return Err(missing("user", "whose rows are in it")),
            _ => {
                return Err(ServerError::configuration(
                    format!("[[images.image]] {name:?} says in more than one way what is in it"),
                    "write one of user, partitions and everyone",
                ));
            }
        };
        Ok(ImageConfig {
            name,
            publication,
            rows,
            public: self.public,
        })
    }
}
