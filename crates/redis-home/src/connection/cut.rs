//! The end of patience: a home that is closed leaves a Redis that does not answer. From then on nothing is waited for.

use tokio::sync::watch;

/// Whether answers are still waited for. Clones are about the same home.
#[derive(Clone, Debug)]
pub(crate) struct Cut(watch::Sender<bool>);

impl Cut {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// No answer is waited for any more.
    pub(crate) fn cut(&self) {
        self.0.send_replace(true);
    }

    /// Waits until no answer is waited for any more.
    pub(crate) async fn happens(&self) {
        // The sender is here, so that there is no other end to it.
        let _ = self.0.subscribe().wait_for(|is_cut| *is_cut).await;
    }

    /// What comes, or else what there is to say if no answer is waited for any more.
    pub(crate) async fn or<T>(&self, comes: impl Future<Output = T>, otherwise: impl FnOnce() -> T) -> T {
        tokio::select! {
            biased;
            came = comes => came,
            () = self.happens() => otherwise(),
        }
    }
}
