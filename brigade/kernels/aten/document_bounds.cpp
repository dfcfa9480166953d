#include "brigade/kernels/aten/document_bounds.h"

#include <algorithm>

namespace brigade::ops {

std::optional<DocumentBounds> document_bounds(const torch::Tensor& starts) {
  const int64_t rows = starts.size(0);
  const int64_t tokens = starts.size(1);
  const auto start = starts.accessor<int64_t, 2>();
  DocumentBounds result{{0}, 0};
  const auto end_at = [&](int64_t token) {
    result.longest = std::max(result.longest, token - result.bounds.back());
    result.bounds.push_back(static_cast<int32_t>(token));
  };
  for (int64_t row = 0; row < rows; ++row) {
    int64_t first = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      if (t > 0 && start[row][t] == t) {
        end_at(row * tokens + t);
        first = t;
      } else if (std::max<int64_t>(start[row][t], 0) != first) {
        return std::nullopt;
      }
    }
    end_at((row + 1) * tokens);
  }
  return result;
}

DocumentBounds rows_as_documents(int64_t rows, int64_t tokens) {
  DocumentBounds result{{}, tokens};
  for (int64_t row = 0; row <= rows; ++row)
    result.bounds.push_back(static_cast<int32_t>(row * tokens));
  return result;
}

}  // namespace brigade::ops
