//! The annotated function: from tokens to [`Item`].

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote_spanned};
use syn::{
    Attribute, Block, Error, Expr, ExprAsync, FnArg, GenericArgument, Ident, Local, Pat,
    PathArguments, Result, ReturnType, Safety, Signature, Stmt, Token, Type, TypeParamBound,
    Visibility, ext::IdentExt as _, parse::ParseStream, parse::Parser as _, parse_quote_spanned,
    visit::Visit, visit_mut::VisitMut,
};

/// A function that can be locked.
pub(crate) struct Item {
    pub(crate) head: Head,
    pub(crate) shape: Shape,
}

/// All of a function but its statements.
pub(crate) struct Head {
    pub(crate) attrs: Vec<Attribute>,
    vis: Visibility,
    pub(crate) sig: Signature,
    /// `#![…]` at the top of the body.
    inner_attrs: Vec<Attribute>,
    /// Of the body's braces.
    braces: Span,
}

pub(crate) enum Shape {
    /// `async fn`, and its body with the braces.
    Async(TokenStream),
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
    fn of(sig: &Signature) -> Self {
        let mut names = Self::default();
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(receiver) => {
                    names.all.push(Ident::new("self", receiver.self_token.span))
                }
                FnArg::Typed(typed) => {
                    let found = names_in(&typed.pat);
                    names.all.extend(found.iter().cloned());
                    if !typed.attrs.iter().any(|attr| attr.path().is_ident("cfg")) {
                        names.arguments.extend(found);
                    }
                }
            }
        }
        names
    }

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
            syn::visit::visit_pat_ident(self, pat);
        }
    }
    let mut search = Search(Vec::new());
    search.visit_pat(pat);
    search.0
}

impl Item {
    /// Reads the item and the names of its arguments. Reports why it cannot be locked, one error for each reason.
    pub(crate) fn parse(
        tokens: TokenStream,
        errors: &mut Vec<Error>,
    ) -> (Option<Self>, Option<Names>) {
        let (head, body) = match parse_head.parse2(tokens) {
            Ok(parsed) => parsed,
            Err(error) => {
                errors.push(error);
                return (None, None);
            }
        };
        let mut names = Names::of(&head.sig);
        let before = errors.len();
        refuse_modifiers(&head.sig, errors);
        if errors.len() > before {
            return (None, Some(names));
        }
        let shape = if head.sig.asyncness.is_some() {
            Ok(Shape::Async(body))
        } else {
            block_shape(&head, body, &mut names)
        };
        let shape = shape.map_err(|error| errors.push(error)).ok();
        (shape.map(|shape| Self { head, shape }), Some(names))
    }

    /// The type of the body's value, if it is written somewhere.
    pub(crate) fn output(&self) -> Option<Type> {
        match (&self.shape, &self.head.sig.output) {
            (Shape::Async(_), ReturnType::Type(_, ty)) => Some((**ty).clone()),
            (Shape::Async(_), ReturnType::Default) => {
                Some(parse_quote_spanned!(self.head.sig.ident.span()=> ()))
            }
            (Shape::Block { .. }, ReturnType::Type(_, ty)) => future_in(ty).flatten(),
            (Shape::Block { .. }, ReturnType::Default) => None,
        }
    }
}

impl Head {
    /// Writes the function with these statements, between the braces that the user wrote.
    pub(crate) fn with(&self, statements: &TokenStream) -> TokenStream {
        let Self {
            attrs,
            vis,
            sig,
            inner_attrs,
            ..
        } = self;
        quote_spanned!(self.braces=> #(#attrs)* #vis #sig { #(#inner_attrs)* #statements })
    }
}

fn parse_head(input: ParseStream) -> Result<(Head, TokenStream)> {
    let attrs = input.call(Attribute::parse_outer)?;
    let vis: Visibility = input.parse()?;
    refuse_other_items(input)?;
    let sig: Signature = input.parse()?;
    if input.peek(Token![;]) {
        let reason = format!(
            "`{}` has no body to lock: annotate the functions that implement it",
            sig.ident
        );
        return Err(Error::new(sig.ident.span(), reason));
    }
    let group = braced(input.parse()?)?;
    let braces = group.span();
    let split = |input: ParseStream| {
        Ok((
            input.call(Attribute::parse_inner)?,
            input.parse::<TokenStream>()?,
        ))
    };
    let (inner_attrs, statements) = split.parse2(group.stream())?;
    let body = quote_spanned!(braces=> { #statements });
    Ok((
        Head {
            attrs,
            vis,
            sig,
            inner_attrs,
            braces,
        },
        body,
    ))
}

/// The body of a function, which may come through `$body:block` in an invisible group.
fn braced(tree: TokenTree) -> Result<Group> {
    match tree {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Ok(group),
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
            braced(syn::parse2(group.stream())?)
        }
        other => Err(Error::new(other.span(), "expected the body of a function")),
    }
}

fn refuse_other_items(input: ParseStream) -> Result<()> {
    let ahead = input.fork();
    let word = ahead
        .call(Ident::parse_any)
        .map_or_else(|_| String::new(), |word| word.to_string());
    let modifies = |ahead: ParseStream| {
        ahead.peek(Token![fn])
            || ahead.peek(Token![async])
            || ahead.peek(Token![unsafe])
            || ahead.peek(Token![extern])
    };
    let (what, where_to) = match word.as_str() {
        "impl" => ("an impl block", "each function inside that is to be locked"),
        "trait" => ("a trait", "each function inside that is to be locked"),
        "mod" => ("a module", "each function inside that is to be locked"),
        "struct" | "enum" | "union" | "type" => ("a type", "an `async fn`"),
        "static" | "use" | "let" | "macro_rules" => ("this", "an `async fn`"),
        "const" if !modifies(&ahead) => ("a constant", "an `async fn`"),
        _ => return Ok(()),
    };
    Err(input.error(format!(
        "only a function can be locked, not {what}: put the attribute on {where_to}"
    )))
}

fn refuse_modifiers(sig: &Signature, errors: &mut Vec<Error>) {
    if let Some(constness) = &sig.constness {
        errors.push(Error::new(
            constness.span,
            "a `const` function cannot wait for a lock: remove `const`",
        ));
    }
    if let Some(abi) = &sig.abi {
        let reason = "an `extern` function cannot wait for a lock: call an `async fn` from it";
        errors.push(Error::new(abi.extern_token.span, reason));
    }
    if let Safety::Unsafe(token) = &sig.safety {
        let reason = "an `unsafe` function cannot be locked: lock a safe one with an `unsafe` block in its body";
        errors.push(Error::new(token.span, reason));
    }
}

/// Looks for the `async` block of a function that is not `async`.
fn block_shape(head: &Head, body: TokenStream, names: &mut Names) -> Result<Shape> {
    let mut block: Block = syn::parse2(body)?;
    let Some(found) = async_block(&mut block) else {
        return Err(not_async(head));
    };
    let mut bindings = std::mem::take(&mut found.block.stmts);
    let body = bindings.split_off(bindings.iter().take_while(|stmt| only_binds(stmt)).count());
    let mut receiver = None;
    for stmt in &bindings {
        if let Stmt::Local(Local {
            pat,
            init: Some(init),
            ..
        }) = stmt
        {
            names.bound.extend(names_in(pat));
            if init.expr.to_token_stream().to_string() == "self" {
                receiver = names.bound.last().cloned();
            }
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

fn not_async(Head { attrs, sig, .. }: &Head) -> Error {
    let is_test = |attr: &Attribute| {
        attr.path()
            .segments
            .last()
            .is_some_and(|last| last.ident == "test")
    };
    let entry = if attrs.iter().any(is_test) {
        "test"
    } else {
        "main"
    };
    if entry == "test" || sig.ident == "main" {
        let reason = format!(
            "another attribute took the `async` away before this one saw it: put `#[distributed_lock]` above \
             `#[tokio::{entry}]`"
        );
        return Error::new(sig.ident.span(), reason);
    }
    match &sig.output {
        ReturnType::Type(_, ty) if future_in(ty).is_some() => Error::new_spanned(
            ty,
            "the `async` block of this future is not in sight: make the function an `async fn`, or let it end with \
             `async move { … }`, `Box::pin(async move { … })` or `async move { … }.boxed()`",
        ),
        _ => Error::new(
            sig.fn_token.span,
            "a function that is not `async` cannot wait for a lock: write `async fn`, or call it in `LockManager::run`",
        ),
    }
}

/// `let x = x;`, and the `if let` in front of it by which `async_trait` tells the compiler the return type.
fn only_binds(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Local(Local {
            init: Some(init), ..
        }) => init.diverge.is_none() && only_names(&init.expr),
        Stmt::Expr(Expr::If(test), _) => test
            .cond
            .to_token_stream()
            .to_string()
            .contains("(__ret) ="),
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
        Expr::Call(call) if call.args.len() == 1 => async_in(call.args.first_mut()?),
        Expr::MethodCall(call) if call.args.is_empty() => async_in(&mut call.receiver),
        Expr::Cast(cast) => async_in(&mut cast.expr),
        Expr::Paren(paren) => async_in(&mut paren.expr),
        Expr::Group(group) => async_in(&mut group.expr),
        Expr::Block(block) => async_block(&mut block.block),
        _ => None,
    }
}

/// Finds a future in a type, and what it is of: `T` in `impl Future<Output = T>`, `Pin<Box<dyn Future<Output = T>>>` and
/// `BoxFuture<'_, T>`.
fn future_in(ty: &Type) -> Option<Option<Type>> {
    struct Search(Option<Option<Type>>);
    impl<'ast> Visit<'ast> for Search {
        fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
            let futures = ["Future", "BoxFuture", "LocalBoxFuture"];
            if self.0.is_some() || !futures.iter().any(|name| segment.ident == name) {
                return syn::visit::visit_path_segment(self, segment);
            }
            let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
                return;
            };
            self.0 = Some(arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::AssocType(output) if output.ident == "Output" => {
                    Some(output.ty.clone())
                }
                GenericArgument::Type(ty) => Some(ty.clone()),
                _ => None,
            }));
        }
    }
    let mut search = Search(None);
    search.visit_type(ty);
    search.0
}

/// Whether a type is `impl Trait` as a whole, so that only the body knows what it is, and the trait is not one of those
/// that a lock failure can be made into. There are none yet.
pub(crate) fn is_opaque(ty: &Type) -> bool {
    const RESPONSES: [&str; 0] = [];
    let Type::ImplTrait(opaque) = ty else {
        return false;
    };
    !opaque.bounds.iter().any(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            let last = bound.path.segments.last();
            last.is_some_and(|last| RESPONSES.iter().any(|name| last.ident == name))
        }
        _ => false,
    })
}

/// Writes `_` for every `impl Trait` inside a type, so that it can stand in a body.
pub(crate) fn inferred(mut ty: Type) -> Type {
    struct Infer;
    impl VisitMut for Infer {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if let Type::ImplTrait(opaque) = ty {
                *ty = parse_quote_spanned!(opaque.impl_token.span=> _);
            } else {
                syn::visit_mut::visit_type_mut(self, ty);
            }
        }
    }
    Infer.visit_type_mut(&mut ty);
    ty
}
