//! `[images]`: files from which new remotes begin, kept fresh by the server, as they are configured.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

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
    /// Whose rows.
    pub user: String,
    /// Whether anybody may fetch it.
    pub public: bool,
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
                "write [[images.image]] with name, publication and user",
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
        let user = user.ok_or_else(|| missing("user", "whose rows are in it"))?;
        Ok(ImageConfig {
            name,
            publication,
            user,
            public: self.public,
        })
    }
}
