#include "brigade/comm/sums/chunk_exchange.h"

#include <algorithm>
#include <array>
#include <set>

#include "brigade/comm/sums/bf16_wire.h"

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

PendingMessages::PendingMessages(
    const GroupMessages& messages,
    MessageKind kind)
    : messages_(messages), kind_(kind) {}

void PendingMessages::receive(const torch::Tensor& into, int from) {
  try {
    pending_.push_back(
        {messages_.transport_->receive(into, from, kind_, messages_.tag_),
         from});
  } catch (const std::out_of_range&) {
    throw;  // the caller's tag
  } catch (const std::exception& error) {
    messages_.close();
    throw LostMessages(error.what(), {from});
  }
}

void PendingMessages::send(const torch::Tensor& from, int to) {
  try {
    pending_.push_back(
        {messages_.transport_->send(from, to, kind_, messages_.tag_), to});
  } catch (const std::out_of_range&) {
    throw;
  } catch (const std::exception& error) {
    messages_.close();
    throw LostMessages(error.what(), {to});
  }
}

void PendingMessages::wait() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    try {
      pending_[i].under_way->wait();
    } catch (const std::exception& error) {
      messages_.close();
      // All other messages have ended by now, or never will.
      std::set<int> peers{pending_[i].peer};
      for (size_t rest = i + 1; rest < pending_.size(); ++rest) {
        try {
          pending_[rest].under_way->wait_at_once();
        } catch (const std::exception&) {
          peers.insert(pending_[rest].peer);
        }
      }
      throw LostMessages(error.what(), {peers.begin(), peers.end()});
    }
  }
  pending_.clear();
}

std::vector<torch::Tensor> equal_chunks(const torch::Tensor& tensor, int size) {
  const auto flat = tensor.view({-1});
  const int64_t numel = flat.numel();
  const int64_t chunk = (numel + size - 1) / size;
  std::vector<torch::Tensor> chunks;
  for (int64_t rank = 0; rank < size; ++rank) {
    const int64_t begin = std::min(rank * chunk, numel);
    chunks.push_back(flat.narrow(0, begin, std::min(chunk, numel - begin)));
  }
  return chunks;
}

PendingMessages scatter_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& chunks,
    const torch::Tensor& into) {
  return exchange_with_peers(
      messages,
      kind,
      [&](int peer) { return into[row_of_peer(peer, messages.rank())]; },
      [&](int peer) { return chunks[peer]; });
}

PendingMessages gather_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const std::vector<torch::Tensor>& chunks) {
  const auto of = [&](int rank) { return chunks[static_cast<size_t>(rank)]; };
  return exchange_with_peers(
      messages, kind, of, [&](int) { return of(messages.rank()); });
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

}  // namespace brigade
