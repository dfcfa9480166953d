// Where documents begin in the rows of a batch, as flash kernels for sequences
// of different lengths want to know it. PURE.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace brigade::ops {

// Documents that lie one after another in B rows of T tokens, none in two rows.
struct DocumentBounds {
  std::vector<int32_t> bounds;  // 0, the end of each document, .., B * T
  int64_t longest = 0;          // tokens of the longest one
};

// The bounds of AttentionOptions::document_starts, int64 [B, T] on the CPU,
// where token t has position t. Nothing where a query's document does not begin
// at the token at which the queries before it say that it does.
std::optional<DocumentBounds> document_bounds(const torch::Tensor& starts);

// Rows that are one document each.
DocumentBounds rows_as_documents(int64_t rows, int64_t tokens);

}  // namespace brigade::ops
