//! Options of a URL that belong to its layout.

use std::sync::Arc;

use sureq_core::limits;

use super::{Layout, OwnLayout};
use crate::connection::target::BadTarget;

/// The layouts that a program supports besides sureq's own.
#[derive(Clone, Copy, Debug)]
pub struct Layouts {
    /// Their names, as an error message lists them after `sureq`.
    pub names: &'static str,
    /// Their options, as an error message lists them.
    pub options: &'static str,
    /// Finds the layout of a name. It takes the options of the layout out of the others.
    pub find: FindLayout,
}

/// Looks a layout up by its name. `None` if there is none of that name, an error if an option makes no sense.
pub type FindLayout = fn(&str, &mut LayoutOptions<'_>) -> Result<Option<Arc<dyn Layout>>, BadTarget>;

impl Layouts {
    /// Sureq's own layout alone.
    pub const OWN: Self = Self { names: "", options: "", find: |_, _| Ok(None) };

    /// The layout of this name. Options that it does not know are an error.
    pub(crate) fn layout(
        &self,
        name: &str,
        mut options: LayoutOptions<'_>,
    ) -> Result<Arc<dyn Layout>, BadTarget> {
        let layout: Arc<dyn Layout> = match name {
            "sureq" => Arc::new(OwnLayout),
            name => (self.find)(name, &mut options)?
                .ok_or_else(|| BadTarget::Layout { layout: name.to_owned(), known: self.names })?,
        };
        match options.0.first() {
            Some((name, _)) => Err(BadTarget::Option { name: (*name).to_owned(), of_layouts: self.options }),
            None => Ok(layout),
        }
    }
}

/// Options of a URL by name, without those that are already taken.
#[derive(Clone, Debug, Default)]
pub struct LayoutOptions<'a>(Vec<(&'a str, &'a str)>);

impl<'a> LayoutOptions<'a> {
    pub(crate) fn put(&mut self, name: &'a str, value: &'a str) {
        self.0.retain(|(known, _)| *known != name);
        self.0.push((name, value));
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.remove(at).1)
    }

    /// The option `lease`, in milliseconds.
    pub fn take_lease_ms(&mut self) -> Result<Option<u64>, BadTarget> {
        let Some(text) = self.take("lease") else { return Ok(None) };
        let ms = sureq_core::id::decimal(text.as_bytes());
        let ms = ms.filter(|ms| (1..=limits::SPAN_MS_MAX).contains(ms));
        ms.map(Some).ok_or_else(|| BadTarget::Lease { lease: text.to_owned() })
    }

    /// A number of seconds, at least `least`.
    pub fn take_seconds(&mut self, name: &str, least: u64) -> Result<Option<u64>, BadTarget> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let seconds = sureq_core::id::decimal(text.as_bytes());
        let seconds = seconds.filter(|seconds| (least..=limits::SPAN_MS_MAX / 1_000).contains(seconds));
        let bad = || BadTarget::Seconds { name: name.to_owned(), text: text.to_owned(), least };
        seconds.map(Some).ok_or_else(bad)
    }
}
