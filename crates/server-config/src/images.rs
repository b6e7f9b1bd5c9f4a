//! `[images]`: files from which new remotes begin, kept fresh by the server, as they are configured.

use std::path::PathBuf;
use std::time::Duration;

use tidewater_centre::GivenPartitions;

use super::Config;
use crate::error::ConfigError;
use crate::names::check_names;
use crate::section_reader::{SectionReader, unknown_word};

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
pub fn is_image_user(user: &str) -> bool {
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
    pub fn from_partitions(partitions: &[String]) -> Result<ImageRows, &str> {
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

/// What to do where there can be no image of a publication.
pub const NO_IMAGE_HINT: &str = "have its devices begin without one, or publish the other tables by \
                             themselves and make images of these";

/// Why there can be no image of a publication: `by` says which rows of a table each user gets.
pub fn image_obstacle(publication: &str, by: &str, table: &str) -> ConfigError {
    ConfigError::new(
        format!(
            "there can be no image of {publication:?}: {by} says which rows of {table:?} each user \
             gets"
        ),
        NO_IMAGE_HINT,
    )
}

impl Config {
    /// Whether there can be images of a publication by what the configuration says.
    ///
    /// # Errors
    /// Scripts or handlers say which rows each user gets.
    pub fn check_image(&self, publication: &str) -> Result<(), ConfigError> {
        let mut all = self.publications.iter();
        let Some(spec) = all.find(|it| it.name == publication) else {
            return Ok(());
        };
        if let Some(table) = spec.tables.iter().find(|it| it.handled.download) {
            return Err(image_obstacle(publication, "a handler", &table.name));
        }
        let mut scripts = spec.scripts.iter();
        match scripts.find(|it| it.event == "download_cursor") {
            None => Ok(()),
            Some(script) => {
                let table = script.table.as_deref().unwrap_or_default();
                Err(image_obstacle(publication, &script.file, table))
            }
        }
    }

    /// The images that there cannot be, and why.
    pub fn image_warnings(&self) -> Vec<String> {
        let images = self.images.iter().flat_map(|it| &it.images);
        let refused = images.filter_map(|image| {
            let error = self.check_image(&image.publication).err()?;
            Some(format!("[[images.image]] {:?}: {error}", image.name))
        });
        refused.collect()
    }
}

impl ImagesConfig {
    /// `published`: the publications of the same configuration.
    pub(super) fn read(
        mut section: SectionReader,
        published: &[&str],
    ) -> Result<ImagesConfig, ConfigError> {
        let images = section.sections("image")?;
        if images.is_empty() {
            return Err(ConfigError::new(
                "[images] names no image",
                "write [[images.image]] with name, publication and user, partitions or everyone",
            ));
        }
        let images = images
            .into_iter()
            .map(|it| ImageConfig::read(it, published));
        let images: Vec<ImageConfig> = images.collect::<Result<_, _>>()?;
        check_names("images.image", images.iter().map(|it| &it.name))?;
        Ok(ImagesConfig {
            folder: section.path("folder")?.unwrap_or_default(),
            every: section.duration("every")?,
            images,
        })
    }
}

impl ImageConfig {
    fn read(mut section: SectionReader, published: &[&str]) -> Result<ImageConfig, ConfigError> {
        let name = section.text("name")?.unwrap_or_default();
        if !is_image_name(&name) {
            return Err(ConfigError::new(
                format!("images.image.name is {name:?}"),
                "write name = \"NAME\", of letters, digits, - and _",
            ));
        }
        let missing = |key: &str, what: &str| {
            ConfigError::new(
                format!("[[images.image]] {name:?} has no {key}"),
                format!("write {key} = \"NAME\", {what}"),
            )
        };
        let publication = section.text("publication")?.filter(|it| !it.is_empty());
        let publication =
            publication.ok_or_else(|| missing("publication", "of which the image is"))?;
        // A configuration without publications is of a server that serves what others deploy.
        if !published.is_empty() && !published.contains(&publication.as_str()) {
            let key = "images.image.publication";
            return Err(unknown_word(key, &publication, published));
        }
        let user = section.text("user")?.filter(|it| !it.is_empty());
        let partitions = section.texts("partitions")?;
        let rows = match (user, &partitions[..], section.flag("everyone")?) {
            (Some(user), [], false) => ImageRows::Of(user),
            (None, [], true) => ImageRows::In(GivenPartitions::default()),
            (None, partitions @ [_, ..], false) => {
                ImageRows::from_partitions(partitions).map_err(|wrong| {
                    ConfigError::new(
                        format!("images.image.partitions has {wrong:?}"),
                        "write partitions = [\"COLUMN=VALUE\"]",
                    )
                })?
            }
            (None, [], false) => return Err(missing("user", "whose rows are in it")),
            _ => {
                return Err(ConfigError::new(
                    format!("[[images.image]] {name:?} says in more than one way what is in it"),
                    "write one of user, partitions and everyone",
                ));
            }
        };
        Ok(ImageConfig {
            name,
            publication,
            rows,
            public: section.flag("public")?,
        })
    }
}
