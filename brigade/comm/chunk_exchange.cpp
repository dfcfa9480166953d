#include "brigade/comm/chunk_exchange.h"

#include <algorithm>
#include <array>

#include "brigade/comm/bf16_bits.h"
#include "brigade/comm/bf16_wire.h"

namespace brigade {
namespace {

// One pass over memory, in blocks that stay in the cache.
void add_bf16_chunks(uint16_t* sum, const uint16_t* own, const Bf16Rows& rows) {
  if (rows.count == 1) {
    add_bf16(sum, own, rows.first, rows.stride);
    return;
  }
  constexpr int64_t kBlock = 4096;
  std::array<float, kBlock> sums;
  for (int64_t begin = 0; begin < rows.stride; begin += kBlock) {
    const int64_t count = std::min(kBlock, rows.stride - begin);
    widen_from_bf16(own + begin, sums.data(), count);
    Bf16Rows block = rows;
    block.first += begin;
    add_bf16_rows(sums.data(), sum + begin, block, count);
  }
}

}  // namespace

PendingMessages scatter_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& chunks,
    const torch::Tensor& into) {
  const int rank = messages.rank();
  const int size = messages.size();
  PendingMessages pending(messages, kind);
  for (int shift = 1; shift < size; ++shift) {
    const int source = (rank + size - shift) % size;
    pending.receive(into[source < rank ? source : source - 1], source);
  }
  for (int shift = 1; shift < size; ++shift) {
    const int destination = (rank + shift) % size;
    pending.send(chunks[destination], destination);
  }
  return pending;
}

PendingMessages gather_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& chunks) {
  return gather_chunks(messages, kind, chunks.unbind());
}

PendingMessages gather_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const std::vector<torch::Tensor>& chunks) {
  const int rank = messages.rank();
  const int size = messages.size();
  PendingMessages pending(messages, kind);
  for (int shift = 1; shift < size; ++shift) {
    const int source = (rank + size - shift) % size;
    pending.receive(chunks[static_cast<size_t>(source)], source);
  }
  for (int shift = 1; shift < size; ++shift)
    pending.send(chunks[static_cast<size_t>(rank)], (rank + shift) % size);
  return pending;
}

void add_chunks(
    const torch::Tensor& sum,
    const torch::Tensor& own,
    const torch::Tensor& others) {
  switch (sum.scalar_type()) {
    case torch::kBFloat16:
      add_bf16_chunks(
          bf16_bits(sum),
          bf16_bits(own),
          {bf16_bits(others), others.size(0), others.size(1)});
      return;
    case torch::kHalf: {
      const auto total =
          own.to(torch::kFloat) +
          others.sum(0, /*keepdim=*/false, torch::kFloat).view_as(own);
      torch::Tensor(sum).copy_(total);
      return;
    }
    default:
      torch::Tensor(sum).copy_(own);
      for (int64_t i = 0; i < others.size(0); ++i)
        torch::Tensor(sum).add_(others[i].view_as(sum));
  }
}

void sum_in_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& tensor) {
  const int size = messages.size();
  const int64_t chunk = (tensor.numel() + size - 1) / size;
  // Buckets divide evenly: their own memory is sent from and gathered into.
  const auto flat = tensor.view({-1});
  auto padded = flat;
  if (chunk * size != flat.numel()) {
    padded = torch::zeros({chunk * size}, tensor.options());
    padded.narrow(0, 0, flat.numel()).copy_(flat);
  }
  const auto chunks = padded.view({size, chunk});
  const auto parts = torch::empty({size - 1, chunk}, tensor.options());
  scatter_chunks(messages, kind, chunks, parts).wait();
  const auto own = chunks[messages.rank()];
  add_chunks(own, own, parts);
  gather_chunks(messages, kind, chunks).wait();
  if (padded.data_ptr() != tensor.data_ptr())
    flat.copy_(padded.narrow(0, 0, flat.numel()));
}

}  // namespace brigade
