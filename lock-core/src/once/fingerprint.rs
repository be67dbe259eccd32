//! The JSON from which a fingerprint is hashed: that of serde, but with the items of a `HashSet` sorted.
//!
//! The order of such a set differs between processes, and even between its copies, so valid repeats would be refused. In
//! serde's data model, a set is a sequence like a `Vec`, whose order must count. Only the type of the iterator, with which
//! serde calls [`Serializer::collect_seq`], tells the two apart. The standard library does not guarantee the names of its
//! types. If this name changes, sets are not sorted any more, and a test fails.
//!
//! Rejected: ignoring the order of all sequences, because `(from, to)` and `(to, from)` would then be the same request.

use std::any;

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::{Error, Value, value};

/// Returns a value as JSON.
pub(super) fn json(of: &(impl Serialize + ?Sized)) -> Result<Value, Error> {
    of.serialize(Json)
}

/// Returns `true` if the type of a sequence is a set without an order, from the standard library or from `hashbrown`.
fn is_unordered<I>() -> bool {
    let name = any::type_name::<I>();
    let path = name.split('<').next();
    path.is_some_and(|path| path.ends_with("::HashSet"))
}

/// A serializer like that of `serde_json`, except that it sorts sets.
struct Json;

/// A value of several parts. Each is serialized by [`Json`] before it is passed to `serde_json`.
struct Parts<C>(C);

macro_rules! as_serde_does {
    ($($method:ident($($name:ident: $ty:ty),*);)*) => {$(
        fn $method(self $(, $name: $ty)*) -> Result<Value, Error> {
            value::Serializer.$method($($name),*)
        }
    )*};
}

macro_rules! in_parts {
    ($($method:ident($($name:ident: $ty:ty),*) -> $parts:ident;)*) => {
        $(type $parts = Parts<<value::Serializer as Serializer>::$parts>;)*
        $(fn $method(self, $($name: $ty),*) -> Result<Self::$parts, Error> {
            value::Serializer.$method($($name),*).map(Parts)
        })*
    };
}

impl Serializer for Json {
    type Ok = Value;
    type Error = Error;

    as_serde_does! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_f32(value: f32);
        serialize_f64(value: f64);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    in_parts! {
        serialize_seq(len: Option<usize>) -> SerializeSeq;
        serialize_tuple(len: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize) -> SerializeTupleVariant;
        serialize_map(len: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize) -> SerializeStructVariant;
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        json(value)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        json(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        value::Serializer.serialize_newtype_variant(name, index, variant, &json(value)?)
    }

    fn collect_seq<I: IntoIterator<Item: Serialize>>(self, items: I) -> Result<Value, Error> {
        let items = items.into_iter().map(|item| json(&item));
        let mut items: Vec<Value> = items.collect::<Result<_, _>>()?;
        if is_unordered::<I>() {
            for item in &mut items {
                item.sort_all_objects();
            }
            items.sort_by_cached_key(Value::to_string);
        }
        Ok(Value::Array(items))
    }
}

macro_rules! parts {
    ($($of:ident::$method:ident($($key:ident: $ty:ty)?);)*) => {$(
        impl<C: $of<Ok = Value, Error = Error>> $of for Parts<C> {
            type Ok = Value;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, $($key: $ty,)? value: &T) -> Result<(), Error> {
                self.0.$method($($key,)? &json(value)?)
            }

            fn end(self) -> Result<Value, Error> {
                self.0.end()
            }
        }
    )*};
}

parts! {
    SerializeSeq::serialize_element();
    SerializeTuple::serialize_element();
    SerializeTupleStruct::serialize_field();
    SerializeTupleVariant::serialize_field();
    SerializeStruct::serialize_field(key: &'static str);
    SerializeStructVariant::serialize_field(key: &'static str);
}

impl<C: SerializeMap<Ok = Value, Error = Error>> SerializeMap for Parts<C> {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.0.serialize_key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.0.serialize_value(&json(value)?)
    }

    fn end(self) -> Result<Value, Error> {
        self.0.end()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

    use serde::Serialize;
    use serde_json::to_value;

    use super::*;

    /// An enum with a variant of each kind in serde's data model.
    #[derive(Serialize)]
    enum Kind {
        Unit,
        New(Option<i128>),
        Tuple(u128, char),
        Struct {
            text: &'static str,
            none: Option<()>,
        },
    }

    #[derive(Serialize)]
    struct Unit;

    #[derive(Serialize)]
    struct New(f32);

    #[derive(Serialize)]
    struct Tuple(i8, u16);

    #[derive(Serialize)]
    struct Request<T> {
        bytes: VecDeque<u8>,
        kinds: Vec<Kind>,
        by_number: BTreeMap<u64, bool>,
        parts: (Unit, New, Tuple),
        tags: T,
    }

    fn request<T>(tags: T) -> Request<T> {
        Request {
            bytes: VecDeque::from([2, 1]),
            kinds: vec![
                Kind::Unit,
                Kind::New(Some(-5)),
                Kind::Tuple(7, 'c'),
                Kind::Struct {
                    text: "text",
                    none: None,
                },
            ],
            by_number: BTreeMap::from([(10, true), (9, false)]),
            parts: (Unit, New(1.5), Tuple(-1, 1)),
            tags,
        }
    }

    #[test]
    fn everything_but_a_set_is_serialized_as_by_serde() {
        let request = request(["b", "a"]);
        assert_eq!(
            json(&request).expect("JSON"),
            to_value(&request).expect("JSON")
        );
        assert!(json(&HashMap::from([((1, 2), 3)])).is_err());
    }

    #[test]
    fn the_items_of_a_set_are_sorted_at_any_depth() {
        let names = ["b", "a", "d", "c", "f", "e"];
        for _ in 0..16 {
            // Each set has its own random order.
            let tags: HashSet<_> = names.into_iter().collect();
            let made = json(&request(Some(&tags))).expect("JSON");
            let expected = json(&request(["a", "b", "c", "d", "e", "f"])).expect("JSON");
            assert_eq!(made, expected);

            let maps = names.map(|name| BTreeMap::from([(name, 1), ("z", 2)]));
            let sets: HashSet<_> = maps.into_iter().collect();
            let made = json(&sets).expect("JSON");
            let first = &made[0]["a"];
            assert_eq!(first, 1, "{made}");
        }
    }
}
