//! How a mutant changes the text of its file, so that a variable switches it on.

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Block, Expr, ExprBinary, ExprStruct, ExprUnary, Pat, ReturnType, Signature};
use thiserror::Error;

use crate::mutant::{Genre, Mutant};

/// A change of the text. All ranges are bytes of the file as it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Text that comes at an offset.
    Insert { at: usize, text: String },
    /// An expression, and what stands in its place if the mutant is switched on.
    Choice {
        whole: Range<usize>,
        other: Vec<Piece>,
    },
}

/// A part of new text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    /// A part of the file. It may have other mutants.
    Source(Range<usize>),
}

/// Why a mutant can't be switched on by a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unviable {
    #[error("the file has nothing of this kind there")]
    NotFound,
    #[error("a constant can't read a variable")]
    Constant,
    #[error("what a let binds would not reach the code after it")]
    Let,
    #[error("both values would need one type, which the signature does not name")]
    OpaqueType,
    #[error("the match has no catch-all without a guard")]
    NoCatchAll,
}

/// The expression that is true while a mutant is switched on.
pub(crate) fn is_active(number: u32) -> String {
    format!("::hostloop_events::is_mutant({number})")
}

impl Edit {
    /// The change that a mutant makes in its file.
    pub(crate) fn of(mutant: &Mutant, file: &syn::File) -> Result<Edit, Unviable> {
        let mut finder = Finder {
            mutant,
            is_constant: false,
            found: Err(Unviable::NotFound),
        };
        finder.visit_file(file);
        finder.found
    }
}

/// Looks for the code that a mutant changes.
struct Finder<'a> {
    mutant: &'a Mutant,
    /// The compiler evaluates the code.
    is_constant: bool,
    found: Result<Edit, Unviable>,
}

impl Finder<'_> {
    fn is_at(&self, genre: Genre, code: &impl Spanned) -> bool {
        self.mutant.genre == genre && code.span().start() == self.mutant.start()
    }

    fn find(&mut self, edit: Result<Edit, Unviable>) {
        self.found = if self.is_constant {
            Err(Unviable::Constant)
        } else {
            edit
        };
    }

    /// Visits code that the compiler evaluates, or that it does not.
    fn visit(&mut self, is_constant: bool, code: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.is_constant, is_constant);
        code(self);
        self.is_constant = before;
    }

    fn function(&mut self, signature: &Signature, body: &Block, code: impl FnOnce(&mut Self)) {
        self.visit(signature.constness.is_some(), |finder| {
            if let Some(first) = body.stmts.first()
                && finder.is_at(Genre::FnValue, first)
            {
                finder.find(fn_value(finder.mutant, signature, body));
            }
            code(finder);
        });
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |finder| {
            visit::visit_item_fn(finder, item)
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, |finder| {
            visit::visit_impl_item_fn(finder, item)
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body, |finder| {
                visit::visit_trait_item_fn(finder, item)
            });
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.visit(true, |finder| visit::visit_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.visit(true, |finder| visit::visit_item_static(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.visit(true, |finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.visit(true, |finder| visit::visit_trait_item_const(finder, item));
    }

    fn visit_expr_const(&mut self, block: &'ast syn::ExprConst) {
        self.visit(true, |finder| visit::visit_expr_const(finder, block));
    }

    fn visit_expr_repeat(&mut self, array: &'ast syn::ExprRepeat) {
        self.visit_expr(&array.expr);
        self.visit(true, |finder| finder.visit_expr(&array.len));
    }

    fn visit_type_array(&mut self, array: &'ast syn::TypeArray) {
        self.visit(true, |finder| visit::visit_type_array(finder, array));
    }

    fn visit_generic_argument(&mut self, argument: &'ast syn::GenericArgument) {
        self.visit(true, |finder| {
            visit::visit_generic_argument(finder, argument)
        });
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.visit(true, |finder| visit::visit_variant(finder, variant));
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        self.visit(true, |finder| visit::visit_pat(finder, pattern));
    }

    fn visit_expr_binary(&mut self, expr: &'ast ExprBinary) {
        if self.is_at(Genre::BinaryOperator, &expr.op) {
            self.find(binary(self.mutant, expr));
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast ExprUnary) {
        if self.is_at(Genre::UnaryOperator, &expr.op) {
            self.find(Ok(Edit::Choice {
                whole: expr.span().byte_range(),
                other: vec![Piece::Source(expr.expr.span().byte_range())],
            }));
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        for arm in &expr.arms {
            if self.is_at(Genre::MatchArm, arm) {
                self.find(match_arm(self.mutant, arm, &expr.arms));
            }
            if let Some((_, guard)) = &arm.guard
                && self.is_at(Genre::MatchArmGuard, guard)
            {
                self.find(guard_value(self.mutant, guard));
            }
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_expr_struct(&mut self, expr: &'ast ExprStruct) {
        for field in expr.fields.pairs() {
            if self.is_at(Genre::StructField, field.value()) {
                let start = field.value().span().byte_range().start;
                let end = field.span().byte_range().end;
                self.find(Ok(without(expr, start..end)));
            }
        }
        visit::visit_expr_struct(self, expr);
    }
}

fn fn_value(mutant: &Mutant, signature: &Signature, body: &Block) -> Result<Edit, Unviable> {
    if is_opaque(&signature.output) {
        return Err(Unviable::OpaqueType);
    }
    let (active, value) = (is_active(mutant.number), &mutant.replacement);
    Ok(Edit::Insert {
        at: body.brace_token.span.open().byte_range().end,
        text: format!(" if {active} {{ return {value}; }}"),
    })
}

/// True if a type says only which traits a value has.
fn is_opaque(output: &ReturnType) -> bool {
    struct Opaque(bool);
    impl<'ast> Visit<'ast> for Opaque {
        fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut opaque = Opaque(false);
    opaque.visit_return_type(output);
    opaque.0
}

fn binary(mutant: &Mutant, expr: &ExprBinary) -> Result<Edit, Unviable> {
    if has_let(&expr.left) || has_let(&expr.right) {
        return Err(Unviable::Let);
    }
    let mut other = operand(&expr.left);
    other.push(Piece::Text(format!(" {} ", mutant.replacement)));
    other.extend(operand(&expr.right));
    Ok(Edit::Choice {
        whole: expr.span().byte_range(),
        other,
    })
}

/// An operand of another operator, which may bind more tightly than the one in the file.
fn operand(expr: &Expr) -> Vec<Piece> {
    let source = Piece::Source(expr.span().byte_range());
    if !matches!(
        expr,
        Expr::Binary(_) | Expr::Cast(_) | Expr::Range(_) | Expr::Closure(_)
    ) {
        return vec![source];
    }
    vec![
        Piece::Text("(".to_owned()),
        source,
        Piece::Text(")".to_owned()),
    ]
}

/// True if a condition binds variables for the code after it.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(ExprBinary {
            left,
            op: BinOp::And(_),
            right,
            ..
        }) => has_let(left) || has_let(right),
        _ => false,
    }
}

fn match_arm(mutant: &Mutant, arm: &Arm, arms: &[Arm]) -> Result<Edit, Unviable> {
    if !arms.iter().any(catches_all) || arm.guard.is_some() {
        return Err(Unviable::NoCatchAll);
    }
    Ok(Edit::Insert {
        at: arm.pat.span().byte_range().end,
        text: format!(" if !{}", is_active(mutant.number)),
    })
}

fn catches_all(arm: &Arm) -> bool {
    matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none()
}

fn guard_value(mutant: &Mutant, guard: &Expr) -> Result<Edit, Unviable> {
    if has_let(guard) {
        return Err(Unviable::Let);
    }
    Ok(Edit::Choice {
        whole: guard.span().byte_range(),
        other: vec![Piece::Text(mutant.replacement.clone())],
    })
}

/// A literal without one of its fields.
fn without(expr: &ExprStruct, field: Range<usize>) -> Edit {
    let whole = expr.span().byte_range();
    let before = whole.start..field.start;
    let after = field.end..whole.end;
    Edit::Choice {
        whole,
        other: vec![Piece::Source(before), Piece::Source(after)],
    }
}
