//! The facts that the tokens of a return type reveal. A macro knows nothing else about the type.
//!
//! The path in `impl IntoResponse` names the trait itself, of any framework. `<_ as IntoResponse>::into_response(value)` is a
//! response, which can represent a failure. Before that call, the body is a separate `async` block, so that `return`, `?` and
//! inference work as in the function. The `Responder` of actix also takes the request, so there the value is a hidden
//! `Responding`: the responder of the body, or that of the failure.

use std::mem;

use proc_macro2::Span;
use syn::{
    Error, GenericArgument, Path, PathArguments, PathSegment, Result, ReturnType, Type,
    TypeParamBound,
    visit::{self, Visit},
};

use crate::{
    args::{Args, option_names::AttributeName},
    item::{Item, is_one_of},
};

/// Names that end in `Stream`, but denote connections.
const CONNECTIONS: &str = "TcpStream UnixStream TlsStream DuplexStream";

/// A trait of a web framework that a handler returns as an `impl Trait`. A failed lock can become a value of that trait, too.
pub(crate) enum Answer<'a> {
    /// The trait of axum and poem, which makes a response from the value alone.
    IntoResponse(&'a Path),
    /// The trait of actix, which makes a response from the value and the request.
    Responder(&'a Path),
}

impl<'a> Answer<'a> {
    /// Returns the span of the trait's name.
    pub(crate) fn span(&self) -> Span {
        let (Self::IntoResponse(path) | Self::Responder(path)) = self;
        let last = path.segments.last();
        last.map_or_else(Span::call_site, |last| last.ident.span())
    }

    pub(crate) fn of(ty: &'a Type) -> Option<Self> {
        let Type::ImplTrait(opaque) = bare(ty) else {
            return None;
        };
        opaque.bounds.iter().find_map(|bound| {
            let TypeParamBound::Trait(bound) = bound else {
                return None;
            };
            let last = bound.path.segments.last()?;
            match last.ident.to_string().as_str() {
                "IntoResponse" => Some(Self::IntoResponse(&bound.path)),
                // A `Responder` with arguments belongs to another framework.
                "Responder" if last.arguments.is_none() => Some(Self::Responder(&bound.path)),
                _ => None,
            }
        })
    }
}

/// Finds the trait in `Result<impl IntoResponse, E>`. The value is converted to a response, or is wrapped until it becomes one,
/// because a response shows how its body is sent.
pub(crate) fn answer_in_result(ty: &Type) -> Option<Answer<'_>> {
    Answer::of(value_of(ty)?)
}

/// Returns the type without parentheses around it, including the invisible ones of a `macro_rules` macro that passes it on.
fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        other => other,
    }
}

/// Returns the first argument of a `Result<…>`.
fn value_of(ty: &Type) -> Option<&Type> {
    let Type::Path(result) = bare(ty) else {
        return None;
    };
    let last = result.path.segments.last();
    let last = last.filter(|last| last.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first()? {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

/// Returns `true` if a type is written as a `Result<…>`.
pub(crate) fn is_result(ty: &Type) -> bool {
    value_of(ty).is_some()
}

/// Returns `true` if a type is a `Result` of a response of axum or poem, or of a value that becomes one. Tonic's response has
/// an argument.
pub(crate) fn is_response_in_result(ty: &Type) -> bool {
    value_of(ty).is_some_and(|value| match bare(value) {
        Type::Path(path) => {
            let last = path.path.segments.last();
            last.is_some_and(|last| last.ident == "Response" && last.arguments.is_none())
        }
        other => Answer::of(other).is_some(),
    })
}

/// The parts of `Result<Json<T>, E>` of any web framework.
pub(crate) struct JsonInResult {
    /// `Result<T, E>`, without the framework's type, so that serde's traits suffice.
    pub(crate) plain: Type,
    /// The path of `Json`, which makes one from a value.
    pub(crate) json: Path,
}

impl JsonInResult {
    pub(crate) fn of(ty: &Type) -> Option<Self> {
        let Type::Path(path) = bare(value_of(ty)?) else {
            return None;
        };
        let mut json = path.path.clone();
        let last = json
            .segments
            .last_mut()
            .filter(|last| last.ident == "Json")?;
        let PathArguments::AngleBracketed(arguments) = mem::take(&mut last.arguments) else {
            return None;
        };
        let mut arguments = arguments.args.into_iter();
        let (Some(value @ GenericArgument::Type(_)), None) = (arguments.next(), arguments.next())
        else {
            return None;
        };
        let mut plain = bare(ty).clone();
        if let Type::Path(result) = &mut plain
            && let Some(last) = result.path.segments.last_mut()
            && let PathArguments::AngleBracketed(arguments) = &mut last.arguments
            && let Some(first) = arguments.args.first_mut()
        {
            *first = value;
        }
        Some(Self { plain, json })
    }
}

/// Checks that the function can report a failed lock to its caller, and that it does not return a stream, which would be read
/// after the release. Only the tokens of the type are checked here. The compiler checks the rest by a trait.
pub(crate) fn check(item: &Item, args: &Args) -> Result<()> {
    let (output, is_async) = (item.output(), item.sig.asyncness.is_some());
    let is_once = args.attribute == AttributeName::RunOnce;
    if let Some(stream) = stream_in(&output) {
        let reason = if is_once {
            "a stream cannot be given to later callers: return what it is made from, as a `Result<T, E>` where `T` implements \
             serde's traits"
        } else {
            "the lock would be released when the function returns, before the stream is read: acquire it in the body, with \
                      `LockManager::acquire`, and return `guard.hold_during(stream)`, which holds it until the stream ends"
        };
        return Err(Error::new_spanned(stream, reason));
    }
    let answer = Answer::of(&output).or_else(|| answer_in_result(&output));
    if is_once && matches!(answer, Some(Answer::Responder(_))) {
        let reason = "an `impl Responder` cannot be given to later callers: return a `Result<T, E>` where `T` implements \
                      serde's traits, and make the response from it in a second function";
        return Err(Error::new_spanned(output, reason));
    }
    if args.on_error.is_some() || Answer::of(&output).is_some() {
        return Ok(());
    }
    let reason = match (&output, &item.sig.output) {
        (Type::ImplTrait(_), _) => {
            "a failed lock cannot become an `impl Trait`, whose type only the body knows (except for `impl IntoResponse` and \
             `impl Responder` of web frameworks): return `Result<impl Trait, E>` where `E: From<LockError>`, or write \
             `on_error = |error| …`"
        }
        (Type::Never(_), _) if is_async => {
            "a function that never returns cannot report a failed lock: write `on_error = |error| …`"
        }
        (_, ReturnType::Default) if is_async => &format!(
            "`{}` returns nothing, so a failed lock would go unnoticed: return `Result<(), E>` where \
             `E: From<LockError>`, or write `on_error = |error| …`",
            item.sig.ident
        ),
        _ => return Ok(()),
    };
    Err(Error::new_spanned(output, reason))
}

/// Finds a type that is read after the function has returned, by its name.
fn stream_in(ty: &Type) -> Option<&Path> {
    struct StreamSearch<'a>(Option<&'a Path>);
    impl<'ast> Visit<'ast> for StreamSearch<'ast> {
        fn visit_path(&mut self, path: &'ast Path) {
            if path.segments.last().is_some_and(is_stream) {
                self.0.get_or_insert(path);
            }
            visit::visit_path(self, path);
        }
    }
    let mut search = StreamSearch(None);
    search.visit_type(ty);
    search.0
}

fn is_stream(segment: &PathSegment) -> bool {
    let name = segment.ident.to_string();
    (is_one_of(&segment.ident, "Sse SSE") || name.ends_with("Stream"))
        && !is_one_of(&segment.ident, CONNECTIONS)
}
