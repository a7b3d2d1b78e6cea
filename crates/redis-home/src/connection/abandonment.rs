//! Ends all waiting for answers, when a home is closed and Redis does not answer.

use tokio::sync::watch;

/// Whether answers are still awaited. Clones belong to the same home.
#[derive(Clone, Debug)]
pub(crate) struct Abandonment(watch::Sender<bool>);

impl Abandonment {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Ends all waiting.
    pub(crate) fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits until waiting has ended.
    pub(crate) async fn happens(&self) {
        // The sender is alive, since it is part of `self`.
        let _ = self.0.subscribe().wait_for(|has_begun| *has_begun).await;
    }

    /// The result of a future, or of `otherwise` if waiting ends first.
    pub(crate) async fn or<T>(&self, comes: impl Future<Output = T>, otherwise: impl FnOnce() -> T) -> T {
        tokio::select! {
            biased;
            came = comes => came,
            () = self.happens() => otherwise(),
        }
    }
}
