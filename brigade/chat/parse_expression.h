// Expressions of a template.
#pragma once

#include "brigade/chat/syntax.h"
#include "brigade/chat/token_stream.h"

namespace brigade::jinja {

// With `a if b else c`.
ExpressionPointer parse_expression(TokenStream& tokens);
// Without it: the iterable of a for loop, whose `if` is the loop's.
ExpressionPointer parse_plain_expression(TokenStream& tokens);
// `a`, or `a, b` as a list.
ExpressionPointer parse_tuple(TokenStream& tokens);
// The filters `name(...) | ...` of a block, applied to kBodyName.
ExpressionPointer parse_block_filters(TokenStream& tokens);

}  // namespace brigade::jinja
