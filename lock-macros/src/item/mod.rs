//! The annotated function, parsed from tokens to [`Item`].

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{
    AssocType, Attribute, Block, Error, Expr, ExprAsync, ExprIf, FnArg,
    GenericArgument as Argument, Ident, Pat, PatIdent, PathArguments, PathSegment, Result,
    ReturnType, Signature, Stmt, Token, Type, Visibility, braced,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
    parse_quote_spanned,
    visit::{self, Visit},
    visit_mut::{self, VisitMut},
};

use crate::{args::option_names::AttributeName, diagnostics::refuse};

pub(crate) mod borrowed;
pub(crate) mod mentions;
pub(crate) mod parameters;
pub(crate) mod return_type;

/// Words in front of a function's name, or of another item, that cannot be locked, with the reasons.
const REFUSED: [(&str, &str); 9] = [
    (
        "const",
        "a `const` item cannot wait for a lock: remove `const`",
    ),
    (
        "extern",
        "an `extern` function cannot wait for a lock: call an `async fn` from it",
    ),
    (
        "unsafe",
        "an `unsafe` function cannot be locked: lock a safe one with an `unsafe` block in its body",
    ),
    (
        "impl",
        "only a function can be locked, not an impl block: put the attribute on each function inside",
    ),
    (
        "trait",
        "only a function can be locked, not a trait: put the attribute on each function inside",
    ),
    (
        "mod",
        "only a function can be locked, not a module: put the attribute on each function inside",
    ),
    (
        "struct enum union type",
        "only a function can be locked, not a type",
    ),
    ("static", "only a function can be locked, not a static"),
    ("use", "only a function can be locked, not an import"),
];

/// A function.
pub(crate) struct Item {
    pub(crate) attrs: Vec<Attribute>,
    vis: Visibility,
    pub(crate) sig: Signature,
    /// `#![…]` at the top of the body.
    inner_attrs: Vec<Attribute>,
    /// The span of the body's braces.
    pub(crate) braces: Span,
    /// The statements to lock, in braces.
    pub(crate) body: TokenStream,
    /// The block of a function that is not `async`. It returns the future of an `async` block, which is empty here.
    around: Option<Block>,
    /// The statements at the top of the `async` block that only rebind the arguments.
    pub(crate) bindings: TokenStream,
    /// `move`, or nothing.
    pub(crate) capture: TokenStream,
    /// The name that `async_trait` gives to `self`.
    pub(crate) receiver: Option<Ident>,
    pub(crate) names: Names,
}

/// The names that a function gives its arguments.
#[derive(Default)]
pub(crate) struct Names {
    /// The names that a key may use.
    all: Vec<Ident>,
    /// The names of the signature that exist under any `cfg`, without `self`.
    pub(crate) arguments: Vec<Ident>,
    /// The names that the first statements of an `async` block give.
    pub(crate) bound: Vec<Ident>,
}

impl Item {
    /// Reads a function, and reports why it cannot be locked, with one error for each reason.
    pub(crate) fn parse(
        attribute: AttributeName,
        tokens: TokenStream,
    ) -> (Option<Self>, Vec<Error>) {
        let mut errors = Vec::new();
        let read = |input: ParseStream| parse_item(attribute, input, &mut errors);
        let parsed = read.parse2(tokens);
        match parsed {
            Ok(item) => (Some(item), errors),
            // An item that is not a function was refused by its first word.
            Err(_) if !errors.is_empty() => (None, errors),
            Err(error) => (None, vec![error]),
        }
    }

    /// Returns the type of the body's value, or `_` if it is not written anywhere.
    pub(crate) fn output(&self) -> Type {
        let written = match (&self.sig.output, &self.around) {
            (ReturnType::Type(_, ty), None) => Some((**ty).clone()),
            (ReturnType::Type(_, ty), Some(_)) => future_in(ty),
            (ReturnType::Default, _) => Some(parse_quote_spanned!(self.sig.ident.span()=> ())),
        };
        written.unwrap_or_else(|| parse_quote_spanned!(self.sig.fn_token.span=> _))
    }

    /// Writes the function with these statements between the braces that the user wrote.
    pub(crate) fn with(&self, mut statements: TokenStream) -> TokenStream {
        let (attrs, vis, sig, inner) = (&self.attrs, &self.vis, &self.sig, &self.inner_attrs);
        if let Some(mut block) = self.around.clone() {
            if let Some(hole) = async_block(&mut block) {
                hole.block.stmts = vec![Stmt::Expr(Expr::Verbatim(statements), None)];
            }
            let stmts = block.stmts;
            statements = quote!(#(#stmts)*);
        }
        quote_spanned!(self.braces=> #(#attrs)* #vis #sig { #(#inner)* #statements })
    }

    /// Finds the `async` block, and takes its statements.
    fn take_block(&mut self, attribute: AttributeName) -> Result<()> {
        let mut block: Block = syn::parse2(self.body.clone())?;
        let Some(found) = async_block(&mut block) else {
            return self.not_async(attribute);
        };
        let mut bindings = std::mem::take(&mut found.block.stmts);
        let body = bindings.split_off(bindings.iter().take_while(|stmt| only_binds(stmt)).count());
        for stmt in &bindings {
            if let Stmt::Local(local) = stmt {
                self.names.bound.extend(names_in(&local.pat));
                let init = local.init.as_ref().map(|init| init.expr.to_token_stream());
                if init.is_some_and(|init| init.to_string() == "self") {
                    self.receiver = self.names.bound.last().cloned();
                }
            }
        }
        self.names.all.extend(self.names.bound.iter().cloned());
        self.capture = found.capture.to_token_stream();
        self.bindings = quote!(#(#bindings)*);
        self.body = quote!({ #(#body)* });
        self.around = Some(block);
        Ok(())
    }

    fn not_async(&self, attribute: AttributeName) -> Result<()> {
        let is_test = |attr: &Attribute| {
            let last = attr.path().segments.last();
            last.is_some_and(|last| last.ident == "test")
        };
        let is_test = self.attrs.iter().any(is_test);
        let entry = if is_test { "test" } else { "main" };
        let name = &self.sig.ident;
        if entry == "test" || name == "main" {
            let attribute = attribute.text();
            let reason = format!(
                "another attribute removed the `async`: put `#[{attribute}]` above `#[tokio::{entry}]`"
            );
            return refuse(name.span(), reason);
        }
        if let ReturnType::Type(_, ty) = &self.sig.output
            && future_in(ty).is_some()
        {
            let reason = "the `async` block of this future is not visible: write an `async fn`, or end with \
                          `async move { … }`, `Box::pin(async move { … })` or `async move { … }.boxed()`";
            return Err(Error::new_spanned(ty, reason));
        }
        let reason = "a function that is not `async` cannot wait for a lock: write `async fn`";
        refuse(self.sig.fn_token.span, reason)
    }
}

impl Names {
    fn of(sig: &Signature) -> Self {
        let mut names = Self::default();
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(receiver) => names.all.push(receiver.self_token.into()),
                FnArg::Typed(typed) => {
                    let found = names_in(&typed.pat);
                    if !typed.attrs.iter().any(|attr| attr.path().is_ident("cfg")) {
                        names.arguments.extend(found.clone());
                    }
                    names.all.extend(found);
                }
            }
        }
        names
    }

    /// Finds the argument that an identifier refers to, raw or not.
    pub(crate) fn find(&self, ident: &Ident) -> Option<&Ident> {
        self.all.iter().rfind(|name| name.unraw() == ident.unraw())
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        let texts = self.all.iter().map(|name| name.unraw().to_string());
        texts.collect()
    }
}

fn names_in(pat: &Pat) -> Vec<Ident> {
    struct NameSearch(Vec<Ident>);
    impl<'ast> Visit<'ast> for NameSearch {
        fn visit_pat_ident(&mut self, pat: &'ast PatIdent) {
            if binds(pat) {
                self.0.push(pat.ident.clone());
            }
            visit::visit_pat_ident(self, pat);
        }
    }
    let mut search = NameSearch(Vec::new());
    search.visit_pat(pat);
    search.0
}

/// Returns `true` if a name in a pattern is a variable. An upper-case name without `ref` or `mut` is a constant or a unit
/// struct.
pub(crate) fn binds(pat: &PatIdent) -> bool {
    let marked = pat.by_ref.is_some() || pat.mutability.is_some();
    marked || !pat.ident.to_string().starts_with(char::is_uppercase)
}

/// Replaces each name for which `other` returns another. The new name has the position of the old one. `other` also receives
/// whether the name follows a dot, as that of a field or a method does.
pub(crate) fn renamed(
    tokens: TokenStream,
    other: &dyn Fn(&Ident, bool) -> Option<Ident>,
) -> TokenStream {
    let mut follows_dot = false;
    let rename = |tree| {
        let is_member = std::mem::replace(&mut follows_dot, false);
        match tree {
            TokenTree::Ident(ident) => {
                let mut name = other(&ident, is_member).unwrap_or_else(|| ident.clone());
                name.set_span(name.span().located_at(ident.span()));
                TokenTree::Ident(name)
            }
            TokenTree::Group(group) => {
                let mut renamed = Group::new(group.delimiter(), renamed(group.stream(), other));
                renamed.set_span(group.span());
                TokenTree::Group(renamed)
            }
            TokenTree::Punct(punct) => {
                follows_dot = punct.as_char() == '.';
                TokenTree::Punct(punct)
            }
            literal @ TokenTree::Literal(_) => literal,
        }
    };
    tokens.into_iter().map(rename).collect()
}

fn parse_item(
    attribute: AttributeName,
    input: ParseStream,
    refused: &mut Vec<Error>,
) -> Result<Item> {
    let attrs = input.call(Attribute::parse_outer)?;
    let vis: Visibility = input.parse()?;
    refuse_words(&input.fork(), refused);
    let sig: Signature = input.parse()?;
    if input.peek(Token![;]) {
        let reason = "has no body to lock: annotate the functions that implement it";
        return refuse(sig.ident.span(), format!("`{}` {reason}", sig.ident));
    }
    let body;
    let braces = braced!(body in input).span.join();
    let inner_attrs = body.call(Attribute::parse_inner)?;
    let statements: TokenStream = body.parse()?;
    let mut item = Item {
        body: quote_spanned!(braces=> { #statements }),
        names: Names::of(&sig),
        capture: quote!(move),
        around: None,
        bindings: TokenStream::new(),
        receiver: None,
        attrs,
        vis,
        sig,
        inner_attrs,
        braces,
    };
    if refused.is_empty() && item.sig.asyncness.is_none() {
        refused.extend(item.take_block(attribute).err());
    }
    Ok(item)
}

fn refuse_words(ahead: ParseStream, refused: &mut Vec<Error>) {
    while !ahead.peek(Token![fn])
        && let Ok(word) = ahead.call(Ident::parse_any)
    {
        let mut reasons = REFUSED.into_iter();
        if let Some((_, reason)) = reasons.find(|(words, _)| is_one_of(&word, words)) {
            refused.push(Error::new(word.span(), reason));
        }
        // After the first word that is not a modifier, any token may follow.
        if !is_one_of(&word, "const async unsafe extern default") {
            break;
        }
    }
}

/// Returns `true` if a word is one of `words`, which are separated by spaces.
pub(crate) fn is_one_of(word: &Ident, words: &str) -> bool {
    words.split(' ').any(|one| word == one)
}

/// Returns `true` if a statement is `let x = x;`, or the `if let` by which `async_trait` tells the compiler the return type.
fn only_binds(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Local(local) => {
            let mut init = local.init.iter();
            init.any(|init| init.diverge.is_none() && only_names(&init.expr))
        }
        Stmt::Expr(Expr::If(ExprIf { cond, .. }), _) => {
            quote!(#cond).to_string().contains("(__ret) =")
        }
        _ => false,
    }
}

/// Returns `true` if an expression is `x`, or `{ let x = x; x }`.
fn only_names(expr: &Expr) -> bool {
    match expr {
        Expr::Path(_) => true,
        Expr::Block(block) => block.block.stmts.iter().all(|stmt| match stmt {
            Stmt::Expr(expr, None) => only_names(expr),
            other => only_binds(other),
        }),
        _ => false,
    }
}

/// Finds the `async` block whose future a block returns.
fn async_block(block: &mut Block) -> Option<&mut ExprAsync> {
    let Stmt::Expr(expr, None) = block.stmts.last_mut()? else {
        return None;
    };
    async_in(expr)
}

fn async_in(expr: &mut Expr) -> Option<&mut ExprAsync> {
    match expr {
        Expr::Async(found) => Some(found),
        Expr::Call(call) if call.args.len() == 1 => async_in(call.args.first_mut()?),
        Expr::MethodCall(call) if call.args.is_empty() => async_in(&mut call.receiver),
        Expr::Cast(cast) => async_in(&mut cast.expr),
        Expr::Paren(paren) => async_in(&mut paren.expr),
        Expr::Group(group) => async_in(&mut group.expr),
        Expr::Block(block) => async_block(&mut block.block),
        _ => None,
    }
}

/// Finds `T` in `impl Future<Output = T>`, `Pin<Box<dyn Future<Output = T>>>` and `BoxFuture<'_, T>`.
fn future_in(ty: &Type) -> Option<Type> {
    struct FutureSearch(Option<Type>);
    impl<'ast> Visit<'ast> for FutureSearch {
        fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
            if is_one_of(&segment.ident, "Future BoxFuture LocalBoxFuture")
                && let PathArguments::AngleBracketed(of) = &segment.arguments
                && let Some(Argument::Type(ty) | Argument::AssocType(AssocType { ty, .. })) =
                    of.args.last()
            {
                self.0.get_or_insert(ty.clone());
            }
            visit::visit_path_segment(self, segment);
        }
    }
    let mut search = FutureSearch(None);
    search.visit_type(ty);
    search.0
}

/// Writes `_` for every `impl Trait` inside a type, so that the type can be used in a body.
pub(crate) fn inferred(mut ty: Type) -> Type {
    struct Infer;
    impl VisitMut for Infer {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            match ty {
                Type::ImplTrait(opaque) => *ty = parse_quote_spanned!(opaque.impl_token.span=> _),
                _ => visit_mut::visit_type_mut(self, ty),
            }
        }
    }
    Infer.visit_type_mut(&mut ty);
    ty
}
