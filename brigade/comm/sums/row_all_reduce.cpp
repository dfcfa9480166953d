#include "brigade/comm/sums/row_all_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "brigade/comm/sums/chunk_exchange.h"

namespace brigade {
namespace {

constexpr int64_t kWordBits = 64;

using RowIndices = std::vector<int64_t>;

// Rows as bytes.
struct Rows {
  explicit Rows(const torch::Tensor& matrix)
      : first(static_cast<char*>(matrix.data_ptr())),
        count(matrix.size(0)),
        row_bytes(matrix.size(1) * matrix.element_size()) {}

  char* operator[](int64_t index) const { return first + index * row_bytes; }

  char* first;
  int64_t count;
  int64_t row_bytes;
};

// Compares bits, so that a row with a negative zero is sent.
bool is_zero(const char* bytes, int64_t count) {
  constexpr int64_t kBlock = 64;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    std::array<uint64_t, kBlock / sizeof(uint64_t)> words;
    std::memcpy(words.data(), bytes + i, kBlock);
    uint64_t any = 0;
    for (const uint64_t word : words)
      any |= word;
    if (any != 0)
      return false;
  }
  return std::all_of(
      bytes + i, bytes + count, [](char byte) { return byte == 0; });
}

RowIndices set_bits(const torch::Tensor& bitmap) {
  RowIndices result;
  const auto* words = bitmap.data_ptr<int64_t>();
  for (int64_t w = 0; w < bitmap.numel(); ++w) {
    auto left = static_cast<uint64_t>(words[w]);
    for (; left != 0; left &= left - 1)
      result.push_back(w * kWordBits + std::countr_zero(left));
  }
  return result;
}

// Returns by rank the rows that are not zero.
std::vector<RowIndices> exchange_bitmaps(
    const GroupMessages& messages,
    const Rows& rows) {
  const int64_t words = (rows.count + kWordBits - 1) / kWordBits;
  const auto bitmaps = torch::zeros({messages.size(), words}, torch::kLong);
  auto* own = bitmaps[messages.rank()].data_ptr<int64_t>();
  for (int64_t row = 0; row < rows.count; ++row) {
    if (!is_zero(rows[row], rows.row_bytes))
      own[row / kWordBits] |= int64_t{1} << (row % kWordBits);
  }
  gather_chunks(messages, MessageKind::kExchange, bitmaps.unbind()).wait();
  std::vector<RowIndices> result;
  for (int rank = 0; rank < messages.size(); ++rank)
    result.push_back(set_bits(bitmaps[rank]));
  return result;
}

// matrix[indices[i]] += packed[i]
template <typename T>
void add_rows(
    const torch::Tensor& packed,
    const RowIndices& indices,
    const torch::Tensor& matrix) {
  const int64_t columns = matrix.size(1);
  const auto* from = packed.data_ptr<T>();
  auto* to = matrix.data_ptr<T>();
  for (const int64_t index : indices) {
    T* sum = to + index * columns;
    for (int64_t column = 0; column < columns; ++column)
      sum[column] += from[column];
    from += columns;
  }
}

void exchange_rows(
    const GroupMessages& messages,
    const std::vector<RowIndices>& indices_of,
    const torch::Tensor& matrix) {
  std::vector<torch::Tensor> packed;  // by rank
  for (const RowIndices& indices : indices_of) {
    packed.push_back(torch::empty(
        {static_cast<int64_t>(indices.size()), matrix.size(1)},
        matrix.options()));
  }
  const auto own = static_cast<size_t>(messages.rank());
  // This rank's rows are moved out of the matrix, to be added in rank order.
  const Rows rows(matrix);
  char* copy = Rows(packed[own]).first;
  for (const int64_t index : indices_of[own]) {
    std::memcpy(copy, rows[index], static_cast<size_t>(rows.row_bytes));
    std::memset(rows[index], 0, static_cast<size_t>(rows.row_bytes));
    copy += rows.row_bytes;
  }
  gather_chunks(messages, MessageKind::kExchange, packed).wait();
  for (size_t rank = 0; rank < packed.size(); ++rank) {
    if (matrix.scalar_type() == torch::kDouble)
      add_rows<double>(packed[rank], indices_of[rank], matrix);
    else
      add_rows<float>(packed[rank], indices_of[rank], matrix);
  }
}

}  // namespace

int64_t sum_rows(const GroupMessages& messages, const torch::Tensor& matrix) {
  const Rows rows(matrix);
  const auto indices_of = exchange_bitmaps(messages, rows);
  size_t most = 0;
  for (const RowIndices& indices : indices_of)
    most = std::max(most, indices.size());
  const int64_t all = static_cast<int64_t>(most) * messages.size();
  // Sums in chunks send about two matrices for any R; rows have to be packed
  // and added too.
  if (all > rows.count) {
    sum_in_chunks(messages, equal_chunks(matrix, messages.size()));
    return rows.count * rows.row_bytes;
  }
  exchange_rows(messages, indices_of, matrix);
  return all * rows.row_bytes / 2;
}

}  // namespace brigade
