//! Payloads as values: bytes, text, JSON, and types that implement [`Encode`] and [`Decode`].

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BadPayload;

/// A value that can be pushed.
///
/// ```
/// use std::borrow::Cow;
/// use sureq::{BadPayload, Encode};
///
/// struct Celsius(i16);
///
/// impl Encode for Celsius {
///     fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
///         Ok(Cow::Owned(self.0.to_be_bytes().to_vec()))
///     }
/// }
/// ```
pub trait Encode {
    /// Encodes the value as a payload.
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload>;
}

/// A value that can be decoded from a payload. Handlers take such values as arguments.
///
/// ```
/// use sureq::{BadPayload, Decode};
///
/// struct Celsius(i16);
///
/// impl Decode for Celsius {
///     fn decode(payload: &[u8]) -> Result<Self, BadPayload> {
///         let bytes = payload.try_into().map_err(|_| BadPayload::new("a temperature", "it is not two bytes"))?;
///         Ok(Self(i16::from_be_bytes(bytes)))
///     }
/// }
/// ```
pub trait Decode: Sized {
    /// Decodes a payload.
    fn decode(payload: &[u8]) -> Result<Self, BadPayload>;
}

/// A serde value that is stored as JSON.
///
/// ```
/// # use sureq::{Decode, Encode, Json};
/// let payload = Json(vec![1, 2]).encode()?.into_owned();
/// assert_eq!(payload, b"[1,2]");
/// assert_eq!(Json::<Vec<i32>>::decode(&payload)?.0, [1, 2]);
/// # Ok::<(), sureq::BadPayload>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Json<T>(pub T);

impl<T: Serialize> Encode for Json<T> {
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
        serde_json::to_vec(&self.0).map(Cow::Owned).map_err(|error| BadPayload::new("JSON", &error))
    }
}

impl<T: DeserializeOwned> Decode for Json<T> {
    fn decode(payload: &[u8]) -> Result<Self, BadPayload> {
        serde_json::from_slice(payload)
            .map(Json)
            .map_err(|error| BadPayload::new("the expected JSON", &error))
    }
}

impl Encode for [u8] {
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
        Ok(Cow::Borrowed(self))
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
        Ok(Cow::Borrowed(self))
    }
}

impl Encode for Vec<u8> {
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
        Ok(Cow::Borrowed(self))
    }
}

impl Encode for str {
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
        Ok(Cow::Borrowed(self.as_bytes()))
    }
}

impl Encode for String {
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
        self.as_str().encode()
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self) -> Result<Cow<'_, [u8]>, BadPayload> {
        (**self).encode()
    }
}

impl Decode for Vec<u8> {
    fn decode(payload: &[u8]) -> Result<Self, BadPayload> {
        Ok(payload.to_vec())
    }
}

impl Decode for String {
    fn decode(payload: &[u8]) -> Result<Self, BadPayload> {
        std::str::from_utf8(payload).map(str::to_owned).map_err(|error| BadPayload::new("UTF-8", &error))
    }
}
