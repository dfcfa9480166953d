// Expressions of a template.
#pragma once

#include "brigade/chat/syntax.h"
#include "brigade/chat/token_stream.h"

namespace brigade::jinja {

// With `a if b else c`.
ExpressionPointer parse_expression(TokenStream& tokens);
// Without: the iterable of a for loop, whose `if` is the loop's.
ExpressionPointer parse_plain_expression(TokenStream& tokens);
// `a`, or `a, b` as a list.
ExpressionPointer parse_tuple(TokenStream& tokens);
// `| name(...)` and more of them on `operand`, which may be none at all.
ExpressionPointer parse_filters(TokenStream& tokens, ExpressionPointer operand);
// Of `name(...) | ...`, on kBodyName.
ExpressionPointer parse_block_filters(TokenStream& tokens);

}  // namespace brigade::jinja
