//! Refusing arguments that borrow, which a body that continues without its caller cannot have.

use syn::{
    Error, FnArg, Lifetime, ParenthesizedGenericArguments, ReceiverKind, Signature, TraitBound,
    TypeFnPtr, TypeReference,
    visit::{self, Visit},
};

/// Refuses each argument that borrows, as far as its tokens show.
pub(crate) fn refused(sig: &Signature) -> Vec<Error> {
    let borrows = sig.inputs.iter().filter(|input| borrows(input));
    let refused = borrows.map(|input| {
        let (what, instead) = match input {
            FnArg::Receiver(_) => ("`self` is borrowed", "take it by value"),
            FnArg::Typed(_) => ("this argument borrows", "take it by value, as a `String` or an `Arc`"),
        };
        let reason = format!(
            "{what} from the caller, but with `on_drop = finish` the body continues without the caller: {instead}, or write \
             `on_drop = cancel`"
        );
        Error::new_spanned(input, reason)
    });
    refused.collect()
}

fn borrows(input: &FnArg) -> bool {
    struct BorrowSearch(bool);
    impl<'ast> Visit<'ast> for BorrowSearch {
        fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
            self.0 |= reference.lifetime.is_none();
            visit::visit_type_reference(self, reference);
        }

        fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
            self.0 |= lifetime.ident != "static";
        }

        fn visit_receiver_kind(&mut self, kind: &'ast ReceiverKind) {
            if let ReceiverKind::Reference(_, lifetime, _) = kind {
                self.0 |= lifetime.is_none();
            }
            visit::visit_receiver_kind(self, kind);
        }

        // The arguments and the return value of a function pointer may borrow, although the pointer does not.
        fn visit_type_fn_ptr(&mut self, _: &'ast TypeFnPtr) {}
        fn visit_parenthesized_generic_arguments(
            &mut self,
            _: &'ast ParenthesizedGenericArguments,
        ) {
        }
        fn visit_trait_bound(&mut self, bound: &'ast TraitBound) {
            if bound.lifetimes.is_none() {
                visit::visit_trait_bound(self, bound);
            }
        }
    }
    let mut search = BorrowSearch(false);
    search.visit_fn_arg(input);
    search.0
}
