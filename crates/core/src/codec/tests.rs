//! Every event reads back as it was written, and nothing that is not one is taken for it.
