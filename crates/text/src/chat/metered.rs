//! Templates whose every operand is weighed.
//!
//! The engine bounds how many steps a template takes, but not what a step costs, and it has no hooks for operators. So a
//! template is rewritten after it is parsed: each operand whose size can matter is put through a filter that takes its
//! weight from the [budget](super::budget) and passes it on. Plain text becomes an expression, which the formatter
//! weighs. The filters' names are none that a template could spell.

use std::collections::BTreeMap;

use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Block, Break, Call, CallArg, CallBlock, Compare, CompareOp, CompareOpKind,
    Const, Continue, Do, EmitExpr, Expr, Filter, FilterBlock, ForLoop, GetAttr, GetItem, IfCond, IfExpr,
    List, Macro, Map, Set, SetBlock, Slice, Spanned, Stmt, Template, Test, Tuple, UnaryOp, UnaryOpKind, Var,
    WithBlock,
};
use minijinja::machinery::{CodeGenerator, Instructions, Span, Token, parse, tokenize};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::{amplifying, budget, python};

/// Longest source. Published templates have up to 20 thousand bytes.
const MAX_SOURCE: usize = 1 << 20;

/// Most operators of one tag: its tree can be as deep as that.
const MAX_OPERATORS: usize = 256;

/// Most branches of conditions: each `elif` is nested in the one before it.
const MAX_BRANCHES: usize = 256;

const SIZED: &str = "~sized";
const FLAT: &str = "~flat";
const DEEP: &str = "~deep";
const SEARCHED: &str = "~searched";
const PART: &str = "~part";
const SORTED: &str = "~sorted";
const PAIRED: &str = "~paired";
const PRODUCT: &str = "~product";

/// Rounds of a sort: items of a list that fits the budget have indices of fewer bits.
const SORT_ROUNDS: u64 = 32;

/// Adds the filters that rewritten templates use.
pub(super) fn register(environment: &mut Environment<'_>) {
    type Weigh = fn(&mut State<'_, '_>, &Value) -> Result<(), Error>;
    let filters: [(&'static str, Weigh); 7] = [
        (SIZED, budget::sized),
        (FLAT, budget::flat),
        (DEEP, budget::deep),
        (SEARCHED, |state, value| match value.kind() {
            ValueKind::Map => Ok(()),
            _ => budget::deep(state, value),
        }),
        (PART, budget::part),
        (SORTED, |state, value| budget::rounds(state, value, SORT_ROUNDS)),
        (PAIRED, budget::pairs),
    ];
    for (name, weigh) in filters {
        environment.add_filter(name, move |state: &mut State<'_, '_>, value: Value| {
            weigh(state, &value).map(|()| value)
        });
    }
    environment.add_filter(PRODUCT, amplifying::product);
}

/// How the operand of a filter is weighed.
fn filter_weight(name: &str) -> &'static str {
    match name {
        "count" | "d" | "default" | "length" => SIZED,
        "attr" | "first" | "items" | "last" | "list" | "reject" | "rejectattr" | "reverse" | "select"
        | "selectattr" => FLAT,
        "dictsort" | "groupby" | "max" | "min" | "sort" | "unique" => SORTED,
        "sum" => PAIRED,
        _ => DEEP,
    }
}

/// A template as the engine runs it.
pub(super) struct Program<'source> {
    pub(super) instructions: Instructions<'source>,
    pub(super) blocks: BTreeMap<&'source str, Instructions<'source>>,
}

/// Parses, rewrites and compiles a template.
pub(super) fn compile<'source>(name: &'source str, source: &'source str) -> Result<Program<'source>, Error> {
    check_size(source)?;
    let template = statement(&parse(source, name, python::syntax())?)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&template);
    let (instructions, blocks) = generator.finish();
    Ok(Program { instructions, blocks })
}

/// Refuses what would become too deep a tree. That has to be seen before there is one: dropping it overflows the stack.
fn check_size(source: &str) -> Result<(), Error> {
    if source.len() > MAX_SOURCE {
        return Err(invalid(format!("it is longer than {MAX_SOURCE} bytes")));
    }
    let (mut operators, mut branches) = (0, 0);
    for token in tokenize(source, false, python::syntax()) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => operators = 0,
            Token::Ident("elif") => branches += 1,
            Token::Ident("and" | "or" | "not" | "in" | "is" | "if" | "else") => operators += 1,
            Token::Ident(_) | Token::Str(_) | Token::String(_) | Token::Comma | Token::Colon => {}
            _ => operators += 1,
        }
        if operators > MAX_OPERATORS || branches > MAX_BRANCHES {
            return Err(invalid(
                "it has too long an expression or too many branches".to_owned(),
            ));
        }
    }
    Ok(())
}

fn statements<'a>(body: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>, Error> {
    body.iter().map(statement).collect()
}

fn statement<'a>(statement: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
    Ok(match statement {
        Stmt::Template(node) => {
            let children = statements(&node.children)?;
            Stmt::Template(Spanned::new(Template { children }, node.span()))
        }
        Stmt::EmitExpr(node) => {
            let expr = expression(&node.expr);
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, node.span()))
        }
        Stmt::EmitRaw(node) => {
            let value = Value::from(node.raw);
            let expr = Expr::Const(Spanned::new(Const { value }, node.span()));
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, node.span()))
        }
        Stmt::ForLoop(node) => Stmt::ForLoop(for_loop(node)?),
        Stmt::IfCond(node) => Stmt::IfCond(condition(node)?),
        Stmt::WithBlock(node) => {
            let assignments = node.assignments.iter();
            let rewritten = WithBlock {
                assignments: assignments
                    .map(|(target, value)| (self::target(target), assigned(target, value)))
                    .collect(),
                body: statements(&node.body)?,
            };
            Stmt::WithBlock(Spanned::new(rewritten, node.span()))
        }
        Stmt::Set(node) => {
            let expr = assigned(&node.target, &node.expr);
            let target = target(&node.target);
            Stmt::Set(Spanned::new(Set { target, expr }, node.span()))
        }
        Stmt::SetBlock(node) => {
            let rewritten = SetBlock {
                target: target(&node.target),
                filter: node.filter.as_ref().map(expression),
                body: statements(&node.body)?,
            };
            Stmt::SetBlock(Spanned::new(rewritten, node.span()))
        }
        Stmt::AutoEscape(node) => {
            let (enabled, body) = (expression(&node.enabled), statements(&node.body)?);
            Stmt::AutoEscape(Spanned::new(AutoEscape { enabled, body }, node.span()))
        }
        Stmt::FilterBlock(node) => {
            let (filter, body) = (expression(&node.filter), statements(&node.body)?);
            Stmt::FilterBlock(Spanned::new(FilterBlock { filter, body }, node.span()))
        }
        Stmt::Block(node) => {
            let (name, required, body) = (node.name, node.required, statements(&node.body)?);
            Stmt::Block(Spanned::new(Block { name, required, body }, node.span()))
        }
        Stmt::Macro(node) => Stmt::Macro(declaration(node)?),
        Stmt::CallBlock(node) => {
            let (call, macro_decl) = (self::call(&node.call), declaration(&node.macro_decl)?);
            Stmt::CallBlock(Spanned::new(CallBlock { call, macro_decl }, node.span()))
        }
        Stmt::Do(node) => {
            let call = call(&node.call);
            Stmt::Do(Spanned::new(Do { call }, node.span()))
        }
        Stmt::Continue(node) => Stmt::Continue(Spanned::new(Continue, node.span())),
        Stmt::Break(node) => Stmt::Break(Spanned::new(Break, node.span())),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            return Err(invalid("a chat template cannot use other templates".to_owned()));
        }
    })
}

fn for_loop<'a>(node: &Spanned<ForLoop<'a>>) -> Result<Spanned<ForLoop<'a>>, Error> {
    let rewritten = ForLoop {
        target: target(&node.target),
        iter: weighed(FLAT, &node.iter),
        filter_expr: node.filter_expr.as_ref().map(expression),
        recursive: node.recursive,
        body: statements(&node.body)?,
        else_body: statements(&node.else_body)?,
    };
    Ok(Spanned::new(rewritten, node.span()))
}

fn condition<'a>(node: &Spanned<IfCond<'a>>) -> Result<Spanned<IfCond<'a>>, Error> {
    let rewritten = IfCond {
        expr: expression(&node.expr),
        true_body: statements(&node.true_body)?,
        false_body: statements(&node.false_body)?,
    };
    Ok(Spanned::new(rewritten, node.span()))
}

fn declaration<'a>(node: &Spanned<Macro<'a>>) -> Result<Spanned<Macro<'a>>, Error> {
    let rewritten = Macro {
        name: node.name,
        args: node.args.iter().map(target).collect(),
        defaults: node.defaults.iter().map(expression).collect(),
        body: statements(&node.body)?,
    };
    Ok(Spanned::new(rewritten, node.span()))
}

/// What is assigned to: it keeps its form.
fn target<'a>(expr: &Expr<'a>) -> Expr<'a> {
    match expr {
        Expr::List(node) => {
            let items = node.items.iter().map(target).collect();
            Expr::List(Spanned::new(List { items }, node.span()))
        }
        _ => expression(expr),
    }
}

/// What is assigned to `target`: to an attribute of a namespace, it becomes a part of that.
fn assigned<'a>(target: &Expr<'a>, value: &Expr<'a>) -> Expr<'a> {
    match target {
        Expr::Var(_) => expression(value),
        _ => weighed(PART, value),
    }
}

/// `expr`, put through the filter `weight`. What is written out in the template weighs nothing.
fn weighed<'a>(weight: &'static str, expr: &Expr<'a>) -> Expr<'a> {
    match expr {
        Expr::Const(_) => expression(expr),
        _ => filtered(weight, expression(expr), Vec::new(), expr.span()),
    }
}

fn filtered<'a>(name: &'a str, expr: Expr<'a>, args: Vec<CallArg<'a>>, span: Span) -> Expr<'a> {
    let expr = Some(expr);
    Expr::Filter(Spanned::new(Filter { name, expr, args }, span))
}

fn expression<'a>(expr: &Expr<'a>) -> Expr<'a> {
    let parts = |items: &[Expr<'a>]| items.iter().map(|item| weighed(PART, item)).collect();
    let span = expr.span();
    match expr {
        Expr::Var(node) => Expr::Var(Spanned::new(Var { id: node.id }, span)),
        Expr::Const(node) => {
            let value = node.value.clone();
            Expr::Const(Spanned::new(Const { value }, span))
        }
        Expr::Slice(node) => slice(node),
        Expr::UnaryOp(node) => {
            let expr = expression(&node.expr);
            #[expect(clippy::needless_match, reason = "the type cannot be copied")]
            let op = match node.op {
                UnaryOpKind::Not => UnaryOpKind::Not,
                UnaryOpKind::Neg => UnaryOpKind::Neg,
            };
            Expr::UnaryOp(Spanned::new(UnaryOp { op, expr }, span))
        }
        Expr::BinOp(node) => binary(node),
        Expr::Compare(node) => comparison(node),
        Expr::IfExpr(node) => {
            let rewritten = IfExpr {
                test_expr: expression(&node.test_expr),
                true_expr: expression(&node.true_expr),
                false_expr: node.false_expr.as_ref().map(expression),
            };
            Expr::IfExpr(Spanned::new(rewritten, span))
        }
        Expr::Filter(node) => {
            let rewritten = Filter {
                name: node.name,
                expr: node
                    .expr
                    .as_ref()
                    .map(|expr| weighed(filter_weight(node.name), expr)),
                args: arguments(DEEP, &node.args),
            };
            Expr::Filter(Spanned::new(rewritten, span))
        }
        Expr::Test(node) => test(node),
        Expr::GetAttr(node) => {
            let (expr, name) = (expression(&node.expr), node.name);
            Expr::GetAttr(Spanned::new(GetAttr { expr, name }, span))
        }
        Expr::GetItem(node) => {
            let (expr, subscript_expr) = (expression(&node.expr), weighed(DEEP, &node.subscript_expr));
            Expr::GetItem(Spanned::new(GetItem { expr, subscript_expr }, span))
        }
        Expr::Call(node) => Expr::Call(call(node)),
        Expr::List(node) => Expr::List(Spanned::new(
            List {
                items: parts(&node.items),
            },
            span,
        )),
        Expr::Tuple(node) => Expr::Tuple(Spanned::new(
            Tuple {
                items: parts(&node.items),
            },
            span,
        )),
        Expr::Map(node) => {
            let keys = node.keys.iter().map(|key| weighed(DEEP, key)).collect();
            let values = parts(&node.values);
            Expr::Map(Spanned::new(Map { keys, values }, span))
        }
    }
}

fn slice<'a>(node: &Spanned<Slice<'a>>) -> Expr<'a> {
    let bound = |expr: &Option<Expr<'a>>| expr.as_ref().map(expression);
    let rewritten = Slice {
        expr: weighed(FLAT, &node.expr),
        start: bound(&node.start),
        stop: bound(&node.stop),
        step: bound(&node.step),
    };
    Expr::Slice(Spanned::new(rewritten, node.span()))
}

fn binary<'a>(node: &Spanned<BinOp<'a>>) -> Expr<'a> {
    let op = node.op;
    let (left, right) = match op {
        BinOpKind::Mul => {
            let factor = vec![CallArg::Pos(expression(&node.right))];
            return filtered(PRODUCT, expression(&node.left), factor, node.span());
        }
        BinOpKind::ScAnd | BinOpKind::ScOr => (expression(&node.left), expression(&node.right)),
        BinOpKind::Add => (weighed(FLAT, &node.left), weighed(FLAT, &node.right)),
        BinOpKind::In => (weighed(DEEP, &node.left), weighed(SEARCHED, &node.right)),
        _ => (weighed(DEEP, &node.left), weighed(DEEP, &node.right)),
    };
    Expr::BinOp(Spanned::new(BinOp { op, left, right }, node.span()))
}

fn comparison<'a>(node: &Spanned<Compare<'a>>) -> Expr<'a> {
    let operand = |operand: &CompareOp<'a>| {
        let op = operand.op;
        let weight = match op {
            CompareOpKind::In | CompareOpKind::NotIn => SEARCHED,
            _ => DEEP,
        };
        let expr = weighed(weight, &operand.expr);
        CompareOp { op, expr }
    };
    let (expr, ops) = (weighed(DEEP, &node.expr), node.ops.iter().map(operand).collect());
    Expr::Compare(Spanned::new(Compare { expr, ops }, node.span()))
}

/// Tests of what a value is cost nothing; those that compare have an argument, and two look at a text.
fn test<'a>(node: &Spanned<Test<'a>>) -> Expr<'a> {
    let looks = !node.args.is_empty() || matches!(node.name, "lower" | "upper");
    let rewritten = Test {
        name: node.name,
        expr: if looks {
            weighed(DEEP, &node.expr)
        } else {
            expression(&node.expr)
        },
        args: arguments(DEEP, &node.args),
    };
    Expr::Test(Spanned::new(rewritten, node.span()))
}

/// What is called keeps its form, since that tells methods and functions apart.
fn call<'a>(node: &Spanned<Call<'a>>) -> Spanned<Call<'a>> {
    let (callee, weight) = match &node.expr {
        Expr::Var(function) if matches!(function.id, "namespace" | "dict") => (expression(&node.expr), PART),
        Expr::GetAttr(method) if !matches!(&method.expr, Expr::Var(object) if object.id == "self") => {
            let (expr, name) = (weighed(FLAT, &method.expr), method.name);
            (
                Expr::GetAttr(Spanned::new(GetAttr { expr, name }, method.span())),
                DEEP,
            )
        }
        other => (expression(other), FLAT),
    };
    let args = arguments(weight, &node.args);
    Spanned::new(Call { expr: callee, args }, node.span())
}

fn arguments<'a>(weight: &'static str, args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
    let weighed = |arg: &CallArg<'a>| match arg {
        CallArg::Pos(value) => CallArg::Pos(weighed(weight, value)),
        CallArg::Kwarg(name, value) => CallArg::Kwarg(name, weighed(weight, value)),
        CallArg::PosSplat(values) => CallArg::PosSplat(weighed(weight, values)),
        CallArg::KwargSplat(values) => CallArg::KwargSplat(weighed(weight, values)),
    };
    args.iter().map(weighed).collect()
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::SyntaxError, reason)
}
