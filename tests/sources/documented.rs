//! Checks from the sources that the documentation of the public interface follows the rules of the project.

use quote::ToTokens;
use syn::{
    Attribute, Expr, ExprLit, FnArg, ImplItem, Item, Lit, Meta, ReceiverKind, ReturnType,
    Signature, TraitItem,
};

use crate::exported;

/// A public function of lock-core, and its documentation.
struct Function {
    /// The name, with the function's type before it, if it has one.
    name: String,
    takes_itself: bool,
    is_async: bool,
    returns: String,
    doc: String,
}

impl Function {
    fn new(owner: Option<&str>, signature: &Signature, attributes: &[Attribute]) -> Self {
        let returns = match &signature.output {
            ReturnType::Type(_, returned) => returned.to_token_stream().to_string(),
            ReturnType::Default => String::new(),
        };
        let takes_itself = matches!(
            signature.inputs.first(),
            Some(FnArg::Receiver(receiver)) if matches!(receiver.kind, ReceiverKind::Value)
        );
        let owner = owner.map_or(String::new(), |owner| format!("{owner}::"));
        Self {
            name: format!("{owner}{}", signature.ident),
            takes_itself,
            is_async: signature.asyncness.is_some() || returns.contains("Future"),
            returns,
            doc: attributes.iter().filter_map(doc_line).collect(),
        }
    }

    /// The text below a heading, up to the next one.
    fn section(&self, heading: &str) -> String {
        let mut lines = self.doc.lines().map(str::trim);
        lines.by_ref().take_while(|line| *line != heading).count();
        let section: Vec<_> = lines.take_while(|line| !line.starts_with("# ")).collect();
        section.join("\n")
    }

    /// Whether its result, or the result of its future, may be an error.
    fn is_fallible(&self) -> bool {
        // The named future has a result, too.
        self.returns.starts_with("AcquireFuture") || self.returns.contains("Result <")
    }

    /// Whether it is a setter of a builder, which takes the builder and returns it changed.
    fn is_setter(&self) -> bool {
        self.takes_itself && self.returns == "Self"
    }
}

/// The text of a `doc` attribute, which is one line.
fn doc_line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    match &pair.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) if pair.path.is_ident("doc") => Some(text.value() + "\n"),
        _ => None,
    }
}

/// All that users of the crate can call.
fn functions() -> Vec<Function> {
    let mut all = Vec::new();
    for item in exported::items() {
        match item {
            Item::Fn(item) => all.push(Function::new(None, &item.sig, &item.attrs)),
            Item::Impl(item) if item.trait_.is_none() => {
                let owner = item.self_ty.to_token_stream().to_string();
                for member in &item.items {
                    if let ImplItem::Fn(member) = member
                        && exported::is_public(&member.vis)
                    {
                        all.push(Function::new(Some(&owner), &member.sig, &member.attrs));
                    }
                }
            }
            Item::Trait(item) => {
                let owner = item.ident.to_string();
                for member in &item.items {
                    if let TraitItem::Fn(member) = member {
                        all.push(Function::new(Some(&owner), &member.sig, &member.attrs));
                    }
                }
            }
            _ => {}
        }
    }
    all
}

/// Fails if a function breaks the rule, or if the check skips a function that is known to need it.
fn each(
    concerned: impl Fn(&Function) -> bool,
    among_them: &[&str],
    obeys: impl Fn(&Function) -> bool,
    rule: &str,
) {
    let all = functions();
    let concerned: Vec<_> = all.iter().filter(|function| concerned(function)).collect();
    for name in among_them {
        let is_there = concerned.iter().any(|function| function.name == *name);
        assert!(is_there, "{name} is not among those looked at");
    }
    let broken: Vec<_> = concerned
        .iter()
        .filter(|function| !obeys(function))
        .map(|function| &*function.name)
        .collect();
    assert!(broken.is_empty(), "{rule}: {broken:?}");
}

#[test]
fn every_future_says_what_dropping_it_leaves_behind() {
    each(
        |function| function.is_async,
        &[
            "LockManager::acquire",
            "LockManager::run_all",
            "LockGuard::release",
            "with_locks",
        ],
        |function| !function.section("# Cancel safety").is_empty(),
        "no `# Cancel safety`",
    );
}

#[test]
fn every_fallible_function_says_which_errors_it_has() {
    each(
        Function::is_fallible,
        &[
            "LockManager::acquire",
            "LockManager::connect",
            "Lease::ensure",
        ],
        |function| {
            let errors = function.section("# Errors");
            errors.contains("Error::") || errors.contains("As [`")
        },
        "no `# Errors` that names variants",
    );
}

#[test]
fn every_setter_says_what_holds_without_it() {
    each(
        Function::is_setter,
        &["LockOptions::wait", "LockManagerBuilder::key_prefix"],
        |function| function.doc.contains("Defaults to"),
        "no \"Defaults to …\"",
    );
}
