//! The identity of a store: from its `store` file, or else from its segments.

use super::report::{Finding, REPAIR};
use crate::checkpoint::is_checkpoint_name;
use crate::disk::Disk;
use crate::fault::OpenError;
use crate::log::is_segment_name;
use crate::log::salvage::uuid_of_most;
use crate::offline::unfinished;
use crate::store::{self, StoreValues};

pub(crate) struct Identity {
    pub(crate) uuid: Option<[u8; 16]>,
    /// The values of the `store` file, if one of its copies is intact.
    pub(crate) values: Option<StoreValues>,
}

/// Finds out the identity of a store: from its `store` file, or else from its segments.
pub(crate) fn identify(disk: &dyn Disk, names: &[String]) -> Result<(Identity, Vec<Finding>), OpenError> {
    let is_ours = |name: &String| is_segment_name(name) || is_checkpoint_name(name) || name == store::NAME;
    unfinished::refuse(disk)?;
    if !names.iter().any(is_ours) {
        return Err(OpenError::NoStore);
    }
    let mut findings = Vec::new();
    let lost = "the store's uuid can be read from its segments; its last incarnation and its id mark cannot";
    let copies = match store::read_copies(disk) {
        Err(error @ OpenError::NewerFormat { .. }) => return Err(error),
        Err(error) => {
            findings.push(Finding::wrong(store::NAME, error.to_string(), lost, REPAIR));
            None
        }
        Ok(None) => {
            findings.push(Finding::wrong(store::NAME, "the file is missing", lost, REPAIR));
            None
        }
        Ok(Some(copies)) => Some(copies),
    };
    let mut values = None;
    match copies {
        None => {}
        Some([None, None]) => {
            let what = "the checksums of both copies do not match";
            findings.push(Finding::wrong(store::NAME, what, lost, REPAIR).at(0, None));
        }
        Some([Some(a), Some(b)]) if a.values.uuid != b.values.uuid => {
            let what = "its copies belong to different stores";
            findings.push(Finding::wrong(store::NAME, what, lost, REPAIR).at(store::COPY_OFFSETS[1], None));
        }
        Some(copies) => {
            for (_, offset) in copies.iter().zip(store::COPY_OFFSETS).filter(|(copy, _)| copy.is_none()) {
                let meaning = "a crash or damage can cause this; the other copy is intact and is used";
                let what = "the checksum of this copy does not match";
                let advice = "nothing: the next start writes both";
                findings.push(Finding::note(store::NAME, what, meaning, advice).at(offset, None));
            }
            let newest = copies.into_iter().flatten().max_by_key(|slot| slot.sequence);
            values = newest.map(|slot| slot.values);
        }
    }
    let uuid = match values {
        Some(values) => Some(values.uuid),
        None => uuid_of_most(disk)?,
    };
    Ok((Identity { uuid, values }, findings))
}
