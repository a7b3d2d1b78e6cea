//! Content that an image of the queue shares with the queue, and the stamp it goes by.

use alloc::sync::Arc;
use core::mem;

/// A piece of a queue. It is the queue's own until an image is taken; from then on the two share it, and a change
/// copies it if the image is still there.
#[derive(Clone, Debug)]
pub(super) enum Shared<T> {
    /// Changed since the last image. Changing it again costs nothing.
    Own(T),
    /// As an image has it, under this stamp.
    Imaged(Arc<T>, u64),
}

impl<T: Clone + Default> Shared<T> {
    pub(super) fn get(&self) -> &T {
        match self {
            Self::Own(content) => content,
            Self::Imaged(content, _) => content,
        }
    }

    /// For a change, which makes it other content than the last image has.
    #[inline]
    pub(super) fn change(&mut self) -> &mut T {
        if matches!(self, Self::Imaged(..)) {
            self.part();
        }
        let Self::Own(content) = self else { unreachable!("it is the queue's own now") };
        content
    }

    #[cold]
    fn part(&mut self) {
        if let Self::Imaged(shared, _) = self {
            *self = Self::Own(Arc::unwrap_or_clone(mem::take(shared)));
        }
    }

    /// For what makes no difference to what is stored of it, while nobody else holds it.
    pub(super) fn amend(&mut self) -> Option<&mut T> {
        match self {
            Self::Own(content) => Some(content),
            Self::Imaged(shared, _) => Arc::get_mut(shared),
        }
    }

    /// The content and its stamp, a new one if it has changed; `last` is the last stamp given out.
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
