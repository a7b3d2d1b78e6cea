//! Content that a queue shares with its image, and its stamp.

use alloc::sync::Arc;
use core::mem;

/// A part of a queue. The queue owns it until an image is taken; then the two share it, and a change copies it if the
/// image still exists.
#[derive(Clone, Debug)]
pub(super) enum Shared<T> {
    /// Changed since the last image. A further change needs no copy.
    Own(T),
    /// Unchanged since the image with this stamp.
    Imaged(Arc<T>, u64),
}

impl<T: Clone + Default> Shared<T> {
    pub(super) fn get(&self) -> &T {
        match self {
            Self::Own(content) => content,
            Self::Imaged(content, _) => content,
        }
    }

    /// The content, for a change. From now on it differs from the last image.
    #[inline]
    pub(super) fn change(&mut self) -> &mut T {
        if matches!(self, Self::Imaged(..)) {
            self.part();
        }
        let Self::Own(content) = self else { unreachable!("`part` has made it the queue's own") };
        content
    }

    #[cold]
    fn part(&mut self) {
        if let Self::Imaged(shared, _) = self {
            *self = Self::Own(Arc::unwrap_or_clone(mem::take(shared)));
        }
    }

    /// The content, for changes that are not stored; `None` while an image shares it.
    pub(super) fn amend(&mut self) -> Option<&mut T> {
        match self {
            Self::Own(content) => Some(content),
            Self::Imaged(shared, _) => Arc::get_mut(shared),
        }
    }

    /// The content and its stamp, which is new if the content has changed. `last` is the last stamp in use.
    pub(super) fn stamped(&mut self, last: &mut u64) -> (u64, Arc<T>) {
        match self {
            Self::Imaged(shared, stamp) => (*stamp, Arc::clone(shared)),
            Self::Own(content) => {
                *last += 1;
                let shared = Arc::new(mem::take(content));
                *self = Self::Imaged(Arc::clone(&shared), *last);
                (*last, shared)
            }
        }
    }
}
