#include "brigade/comm/agreement.h"

#include <algorithm>
#include <cstring>

#include "brigade/base/hash.h"

namespace brigade {
namespace {

torch::Tensor to_tensor(const std::vector<int64_t>& values) {
  auto tensor =
      torch::empty({static_cast<int64_t>(values.size())}, torch::kLong);
  std::copy(values.begin(), values.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

std::vector<int64_t> to_values(const torch::Tensor& tensor) {
  const auto* begin = tensor.data_ptr<int64_t>();
  return {begin, begin + tensor.numel()};
}

void copy_text(const std::string& text, const torch::Tensor& bytes) {
  if (!text.empty())
    std::memcpy(bytes.data_ptr(), text.data(), text.size());
}

std::string to_text(const torch::Tensor& bytes, int64_t length) {
  if (length == 0)
    return {};
  return {
      static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(length)};
}

}  // namespace

int64_t Agreement::reduce(int64_t mine, ReduceOp op) const {
  auto value = torch::full({1}, mine, torch::kLong);
  group_->all_reduce(value, op)->wait_on_host();
  return value.item<int64_t>();
}

int64_t Agreement::sum(int64_t mine) const {
  return reduce(mine, ReduceOp::kSum);
}

int64_t Agreement::min(int64_t mine) const {
  return reduce(mine, ReduceOp::kMin);
}

int64_t Agreement::max(int64_t mine) const {
  return reduce(mine, ReduceOp::kMax);
}

std::vector<int64_t> Agreement::max(const std::vector<int64_t>& mine) const {
  auto values = to_tensor(mine);
  group_->all_reduce(values, ReduceOp::kMax)->wait_on_host();
  return to_values(values);
}

std::string Agreement::text_of(int root, const std::string& mine) const {
  const auto length =
      values_of(root, {static_cast<int64_t>(mine.size())}).front();
  auto bytes = torch::empty({length}, torch::kByte);
  if (rank() == root)
    copy_text(mine, bytes);
  group_->broadcast(bytes, root)->wait_on_host();
  return to_text(bytes, length);
}

std::vector<int64_t> Agreement::values_of(
    int root,
    const std::vector<int64_t>& mine) const {
  auto values = to_tensor(mine);
  group_->broadcast(values, root)->wait_on_host();
  return to_values(values);
}

std::vector<std::string> Agreement::texts(const std::string& mine) const {
  auto lengths = torch::empty({size()}, torch::kLong);
  group_->all_gather(lengths, to_tensor({static_cast<int64_t>(mine.size())}))
      ->wait_on_host();
  const auto longest = lengths.max().item<int64_t>();
  if (longest == 0)
    return std::vector<std::string>(static_cast<size_t>(size()));
  auto text = torch::zeros({longest}, torch::kByte);
  copy_text(mine, text);
  auto all = torch::empty({size(), longest}, torch::kByte);
  group_->all_gather(all, text)->wait_on_host();
  std::vector<std::string> result;
  for (int rank = 0; rank < size(); ++rank)
    result.push_back(to_text(all[rank], lengths[rank].item<int64_t>()));
  return result;
}

std::optional<TextDifference> Agreement::find_difference(
    const std::string& mine) const {
  auto summaries = torch::empty({size(), 2}, torch::kLong);
  const auto summary = to_tensor(
      {static_cast<int64_t>(fnv1a_64(mine)),
       static_cast<int64_t>(mine.size())});
  group_->all_gather(summaries, summary)->wait_on_host();
  int different = 0;
  for (int rank = size() - 1; rank > 0; --rank) {
    if (!torch::equal(summaries[rank], summaries[0]))
      different = rank;
  }
  if (different == 0)
    return std::nullopt;
  const auto all = texts(mine);
  return TextDifference{
      different, all.front(), all[static_cast<size_t>(different)]};
}

}  // namespace brigade
