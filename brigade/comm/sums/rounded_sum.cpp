#include "brigade/comm/sums/rounded_sum.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "brigade/base/check.h"

namespace brigade {
namespace {

constexpr int64_t kLargestWireBlock = 256;

}  // namespace

RoundedSum::RoundedSum(
    WireFormat format,
    const std::vector<FlatRange>& ranges,
    Communicator& communicator)
    : format_(format), communicator_(communicator) {
  const int64_t size = block_numel(format);
  for (const FlatRange& range : ranges) {
    for (int64_t begin = 0; begin < range.numel; begin += size)
      blocks_.push_back(
          {range.begin + begin, std::min(size, range.numel - begin)});
  }
  const int64_t ranks = communicator.size();
  chunk_ = (static_cast<int64_t>(blocks_.size()) + ranks - 1) / ranks;
}

int64_t RoundedSum::wire_bytes() const {
  return communicator_.size() * chunk_ * block_bytes(format_);
}

template <typename Visit>
void RoundedSum::for_each_block(
    int owner,
    const torch::Tensor& wire,
    const Visit& visit) {
  const int64_t begin = owner * chunk_;
  const int64_t end =
      std::min(begin + chunk_, static_cast<int64_t>(blocks_.size()));
  auto* bytes = wire.data_ptr<uint8_t>();
  for (int64_t b = begin; b < end; ++b)
    visit(
        blocks_[static_cast<size_t>(b)],
        bytes + (b - begin) * block_bytes(format_));
}

void RoundedSum::encode(const Block& block, uint8_t* wire) {
  const float* values = values_.data_ptr<float>() + block.begin;
  float* errors = errors_.data_ptr<float>() + block.begin;
  encode_block(format_, values, block.numel, wire);
  std::array<float, kLargestWireBlock> rounded;
  decode_block(format_, wire, block.numel, rounded.data());
  for (int64_t i = 0; i < block.numel; ++i) {
    const float error = values[i] - rounded[static_cast<size_t>(i)];
    // An infinity must not stay in the errors.
    errors[i] = std::isfinite(error) ? error : 0;
  }
}

WorkPtr RoundedSum::scatter(torch::Tensor values, torch::Tensor errors) {
  BRIGADE_ASSERT(
      values.scalar_type() == torch::kFloat && values.is_contiguous() &&
          errors.scalar_type() == torch::kFloat && errors.is_contiguous() &&
          errors.numel() == values.numel(),
      "{} values, {} errors",
      values.numel(),
      errors.numel());
  const torch::NoGradGuard no_grad;
  values_ = values.detach();
  errors_ = errors.detach();
  values_.add_(errors_);
  if (communicator_.size() == 1) {
    errors_.zero_();
    return make_completed_work();
  }
  if (!wire_.defined()) {
    wire_ = torch::zeros(
        {communicator_.size(), chunk_ * block_bytes(format_)}, torch::kByte);
    received_ = torch::empty_like(wire_);
  }
  for (int peer = 0; peer < communicator_.size(); ++peer) {
    if (peer == communicator_.rank())
      continue;
    for_each_block(peer, wire_[peer], [&](const Block& block, uint8_t* bytes) {
      encode(block, bytes);
    });
  }
  return communicator_.all_to_all(received_, wire_);
}

WorkPtr RoundedSum::gather() {
  if (communicator_.size() == 1)
    return make_completed_work();
  const int rank = communicator_.rank();
  auto* values = values_.data_ptr<float>();
  std::array<float, kLargestWireBlock> part;
  for (int peer = 0; peer < communicator_.size(); ++peer) {
    if (peer == rank)
      continue;
    // This rank's chunk, as the peer sent it.
    for_each_block(
        rank, received_[peer], [&](const Block& block, const uint8_t* bytes) {
          decode_block(format_, bytes, block.numel, part.data());
          for (int64_t i = 0; i < block.numel; ++i)
            values[block.begin + i] += part[static_cast<size_t>(i)];
        });
  }
  const torch::Tensor sums = wire_[rank];
  for_each_block(rank, sums, [&](const Block& block, uint8_t* bytes) {
    encode(block, bytes);
  });
  return communicator_.all_gather(received_, sums);
}

void RoundedSum::finish() {
  if (communicator_.size() > 1) {
    auto* values = values_.data_ptr<float>();
    for (int owner = 0; owner < communicator_.size(); ++owner) {
      for_each_block(
          owner,
          received_[owner],
          [&](const Block& block, const uint8_t* bytes) {
            decode_block(format_, bytes, block.numel, values + block.begin);
          });
    }
  }
  values_.reset();
  errors_.reset();
}

}  // namespace brigade
