//! The annotated function: from tokens to [`Item`].

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{
    Attribute, Block, Expr, ExprAsync, FnArg, GenericArgument, Ident, Local, Pat, PathArguments,
    ReturnType, Safety, Signature, Stmt, Token, Type, TypeParamBound, Visibility,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
    spanned::Spanned as _,
    visit::{self, Visit},
    visit_mut::{self, VisitMut},
};

/// A function that can be wrapped.
pub(crate) struct Item {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    /// `#![…]` at the top of the body.
    pub(crate) inner_attrs: Vec<Attribute>,
    pub(crate) shape: Shape,
}

pub(crate) enum Shape {
    /// `async fn`.
    Async { body: TokenStream },
    /// A function that returns the future of an `async` block: by itself, or because `async_trait` made it one.
    Block {
        /// With an empty `async` block where the body was.
        block: Block,
        /// The statements at its top that only give the arguments their names.
        bindings: Vec<Stmt>,
        body: Vec<Stmt>,
        /// What `self` is called in the body.
        receiver: Option<Ident>,
    },
}

/// The names that a function gives its arguments.
#[derive(Default)]
pub(crate) struct Names {
    /// What a key may name.
    all: Vec<Ident>,
    /// Those of the signature that are there under any `cfg`, without `self`.
    pub(crate) arguments: Vec<Ident>,
    /// Those that the first statements of an `async` block give.
    pub(crate) bound: Vec<Ident>,
}

impl Names {
    /// Finds the argument that an identifier means, raw or not.
    pub(crate) fn find(&self, ident: &Ident) -> Option<&Ident> {
        self.all
            .iter()
            .rev()
            .find(|name| name.unraw() == ident.unraw())
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        self.all
            .iter()
            .map(|name| name.unraw().to_string())
            .collect()
    }

    fn add_arguments(&mut self, sig: &Signature) {
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(receiver) => {
                    self.all.push(Ident::new("self", receiver.self_token.span))
                }
                FnArg::Typed(typed) => {
                    let names = names_in(&typed.pat);
                    let conditional = typed.attrs.iter().any(|attr| attr.path().is_ident("cfg"));
                    self.all.extend(names.iter().cloned());
                    self.arguments
                        .extend(names.into_iter().filter(|_| !conditional));
                }
            }
        }
    }
}

fn names_in(pat: &Pat) -> Vec<Ident> {
    struct Search(Vec<Ident>);
    impl<'ast> Visit<'ast> for Search {
        fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
            let marked = pat.by_ref.is_some() || pat.mutability.is_some();
            // An upper-case name without more is a constant or a unit struct.
            if marked || !pat.ident.to_string().starts_with(char::is_uppercase) {
                self.0.push(pat.ident.clone());
            }
            visit::visit_pat_ident(self, pat);
        }
    }
    let mut search = Search(Vec::new());
    search.visit_pat(pat);
    search.0
}

impl Item {
    /// Reads the item and the names of its arguments, or says why it cannot be locked: one error for each reason.
    pub(crate) fn parse(
        tokens: TokenStream,
        names: &mut Option<Names>,
    ) -> Result<Self, Vec<syn::Error>> {
        let (attrs, vis, sig, inner_attrs, body) =
            parse_parts.parse2(tokens).map_err(|error| vec![error])?;
        let names = names.insert(Names::default());
        names.add_arguments(&sig);
        let errors = refused_modifiers(&sig);
        if !errors.is_empty() {
            return Err(errors);
        }
        let shape = if sig.asyncness.is_some() {
            Shape::Async { body }
        } else {
            block_shape(&attrs, &sig, body, names).map_err(|error| vec![error])?
        };
        Ok(Self {
            attrs,
            vis,
            sig,
            inner_attrs,
            shape,
        })
    }

    /// The type of the body's value, if it is written somewhere.
    pub(crate) fn output(&self) -> Option<Type> {
        let unit = |at: Span| {
            Type::Tuple(syn::TypeTuple {
                attrs: Vec::new(),
                paren_token: syn::token::Paren(at),
                elems: syn::punctuated::Punctuated::new(),
            })
        };
        match (&self.shape, &self.sig.output) {
            (Shape::Async { .. }, ReturnType::Default) => Some(unit(self.sig.ident.span())),
            (Shape::Async { .. }, ReturnType::Type(_, ty)) => Some((**ty).clone()),
            (Shape::Block { .. }, ReturnType::Default) => None,
            (Shape::Block { .. }, ReturnType::Type(_, ty)) => future_output(ty),
        }
    }
}

type Parts = (
    Vec<Attribute>,
    Visibility,
    Signature,
    Vec<Attribute>,
    TokenStream,
);

fn parse_parts(input: ParseStream) -> syn::Result<Parts> {
    let attrs = input.call(Attribute::parse_outer)?;
    let vis: Visibility = input.parse()?;
    refuse_other_items(input)?;
    let sig: Signature = input.parse()?;
    if input.peek(Token![;]) {
        return Err(syn::Error::new(
            sig.ident.span(),
            format!(
                "`{}` has no body to lock: annotate the functions that implement it",
                sig.ident
            ),
        ));
    }
    let group = braced(input.parse()?)?;
    let split = |input: ParseStream| {
        Ok((
            input.call(Attribute::parse_inner)?,
            input.parse::<TokenStream>()?,
        ))
    };
    let (inner_attrs, statements) = split.parse2(group.stream())?;
    let mut body = Group::new(Delimiter::Brace, statements);
    body.set_span(group.span());
    Ok((attrs, vis, sig, inner_attrs, TokenTree::Group(body).into()))
}

/// The body of a function, which may come through `$body:block` in an invisible group.
fn braced(tree: TokenTree) -> syn::Result<Group> {
    match tree {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Ok(group),
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
            braced(syn::parse2(group.stream())?)
        }
        other => Err(syn::Error::new(
            other.span(),
            "expected the body of a function",
        )),
    }
}

fn refuse_other_items(input: ParseStream) -> syn::Result<()> {
    let ahead = input.fork();
    let _default: Option<Token![default]> = ahead.parse()?;
    let word = ahead
        .call(Ident::parse_any)
        .map(|word| word.to_string())
        .unwrap_or_default();
    let what = match word.as_str() {
        "struct" | "enum" | "union" => "a type",
        "impl" => "an impl block",
        "trait" => "a trait",
        "mod" => "a module",
        "static" | "type" | "use" | "let" | "macro_rules" => "this",
        "const"
            if !ahead.peek(Token![fn])
                && !ahead.peek(Token![async])
                && !ahead.peek(Token![unsafe])
                && !ahead.peek(Token![extern]) =>
        {
            "a constant"
        }
        _ => return Ok(()),
    };
    let advice = match what {
        "an impl block" | "a trait" => {
            "put the attribute on each function inside that is to be locked"
        }
        _ => "put the attribute on an `async fn`",
    };
    Err(syn::Error::new(
        input.span(),
        format!("only a function can be locked, not {what}: {advice}"),
    ))
}

fn refused_modifiers(sig: &Signature) -> Vec<syn::Error> {
    let mut errors = Vec::new();
    let mut refuse = |span: Span, reason: &str| errors.push(syn::Error::new(span, reason));
    if let Some(constness) = &sig.constness {
        refuse(
            constness.span,
            "a `const` function cannot wait for a lock: remove `const`",
        );
    }
    if let Some(abi) = &sig.abi {
        refuse(
            abi.extern_token.span,
            "an `extern` function cannot wait for a lock: call an `async fn` from it",
        );
    }
    match &sig.safety {
        Safety::Unsafe(token) => refuse(
            token.span,
            "an `unsafe` function cannot be locked: lock a safe one, and write the `unsafe` block in its body",
        ),
        Safety::Safe(token) => refuse(
            token.span,
            "a `safe` function of an `extern` block has no body to lock",
        ),
        Safety::Default => {}
    }
    errors
}

/// Looks for the `async` block of a function that is not `async`.
fn block_shape(
    attrs: &[Attribute],
    sig: &Signature,
    body: TokenStream,
    names: &mut Names,
) -> Result<Shape, syn::Error> {
    let refused = || {
        if attrs.iter().any(|attr| {
            attr.path()
                .segments
                .last()
                .is_some_and(|last| last.ident == "test")
        }) || sig.ident == "main"
        {
            return syn::Error::new(
                sig.ident.span(),
                format!(
                    "another attribute took the `async` away before this one saw it: put `#[distributed_lock]` above `#[tokio::{}]`",
                    if sig.ident == "main" { "main" } else { "test" }
                ),
            );
        }
        match &sig.output {
            ReturnType::Type(_, ty) if names_future(ty) => syn::Error::new_spanned(
                ty,
                "the `async` block of this future is not in sight: make the function an `async fn`, or let it end with \
                 `async move { … }`, `Box::pin(async move { … })` or `async move { … }.boxed()`",
            ),
            _ => syn::Error::new(
                sig.fn_token.span,
                "a function that is not `async` cannot wait for a lock: write `async fn`, or use `LockManager::run` where it is called",
            ),
        }
    };
    let mut block: Block = syn::parse2(body)?;
    let Some(found) = async_block(&mut block) else {
        return Err(refused());
    };
    let mut bindings = std::mem::take(&mut found.block.stmts);
    let body = bindings.split_off(bindings.iter().take_while(|stmt| only_binds(stmt)).count());
    let mut receiver = None;
    for local in bindings.iter().filter_map(local) {
        names.bound.extend(names_in(&local.pat));
        if let (Pat::Ident(pat), Some(init)) = (&local.pat, &local.init)
            && init.expr.to_token_stream().to_string() == "self"
        {
            receiver = Some(pat.ident.clone());
        }
    }
    names.all.extend(names.bound.iter().cloned());
    Ok(Shape::Block {
        block,
        bindings,
        body,
        receiver,
    })
}

fn local(stmt: &Stmt) -> Option<&Local> {
    if let Stmt::Local(local) = stmt {
        Some(local)
    } else {
        None
    }
}

/// `let x = x;`, and the `if let` in front of it by which `async_trait` tells the compiler the return type.
fn only_binds(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Local(local) => local
            .init
            .as_ref()
            .is_some_and(|init| init.diverge.is_none() && only_names(&init.expr)),
        Stmt::Expr(Expr::If(test), _) => {
            let Expr::Let(test) = &*test.cond else {
                return false;
            };
            let tested = test.expr.to_token_stream().to_string();
            tested.contains("None") && test.pat.to_token_stream().to_string().contains("__ret")
        }
        _ => false,
    }
}

/// `x`, or `{ let x = x; x }`.
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
pub(crate) fn async_block(block: &mut Block) -> Option<&mut ExprAsync> {
    match block.stmts.last_mut()? {
        Stmt::Expr(expr, None) => async_in(expr),
        _ => None,
    }
}

fn async_in(expr: &mut Expr) -> Option<&mut ExprAsync> {
    match expr {
        Expr::Async(found) => Some(found),
        Expr::Call(call) if call.args.len() == 1 => call.args.first_mut().and_then(async_in),
        Expr::MethodCall(call) if call.args.is_empty() => async_in(&mut call.receiver),
        Expr::Cast(cast) => async_in(&mut cast.expr),
        Expr::Paren(paren) => async_in(&mut paren.expr),
        Expr::Group(group) => async_in(&mut group.expr),
        Expr::Block(block) if block.label.is_none() => async_block(&mut block.block),
        _ => None,
    }
}

/// The names of types that are futures.
const FUTURES: [&str; 4] = ["Future", "IntoFuture", "BoxFuture", "LocalBoxFuture"];

fn names_future(ty: &Type) -> bool {
    struct Search(bool);
    impl<'ast> Visit<'ast> for Search {
        fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
            self.0 |= FUTURES.iter().any(|name| segment.ident == name);
            visit::visit_path_segment(self, segment);
        }
    }
    let mut search = Search(false);
    search.visit_type(ty);
    search.0
}

/// Finds `T` in `impl Future<Output = T>`, `Pin<Box<dyn Future<Output = T>>>` and `BoxFuture<'_, T>`.
fn future_output(ty: &Type) -> Option<Type> {
    struct Search(Option<Type>);
    impl<'ast> Visit<'ast> for Search {
        fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
            if let PathArguments::AngleBracketed(arguments) = &segment.arguments
                && self.0.is_none()
                && FUTURES.iter().any(|name| segment.ident == name)
            {
                self.0 = arguments.args.iter().find_map(|argument| match argument {
                    GenericArgument::AssocType(output) if output.ident == "Output" => {
                        Some(output.ty.clone())
                    }
                    GenericArgument::Type(ty) => Some(ty.clone()),
                    _ => None,
                });
            } else {
                visit::visit_path_segment(self, segment);
            }
        }
    }
    let mut search = Search(None);
    search.visit_type(ty);
    search.0
}

/// Whether a type is `impl Trait` as a whole, so that only the body knows what it is.
pub(crate) fn is_opaque(ty: &Type) -> bool {
    match ty {
        Type::ImplTrait(_) => true,
        Type::Group(group) => is_opaque(&group.elem),
        Type::Paren(paren) => is_opaque(&paren.elem),
        _ => false,
    }
}

/// Whether a type is opaque, but can carry a lock failure all the same. No trait can yet.
pub(crate) fn carries_failure(ty: &Type) -> bool {
    const TRAITS: [&str; 0] = [];
    let Type::ImplTrait(opaque) = ty else {
        return false;
    };
    opaque.bounds.iter().any(|bound| match bound {
        TypeParamBound::Trait(bound) => bound
            .path
            .segments
            .last()
            .is_some_and(|last| TRAITS.iter().any(|name| last.ident == name)),
        _ => false,
    })
}

/// Writes `_` for every `impl Trait` inside a type, so that it can stand in a body.
pub(crate) fn inferred(mut ty: Type) -> Type {
    struct Infer;
    impl VisitMut for Infer {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if let Type::ImplTrait(opaque) = ty {
                let span = opaque.span();
                *ty = syn::parse_quote_spanned!(span=> _);
            } else {
                visit_mut::visit_type_mut(self, ty);
            }
        }
    }
    Infer.visit_type_mut(&mut ty);
    ty
}
