#include "brigade/data_parallel/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "brigade/base/error.h"
#include "brigade/data_parallel/grad_sync.h"

namespace brigade {
namespace {

// One line a parameter: "name: [2, 3] Float".
std::string describe(const std::vector<NamedParam>& params) {
  std::string text;
  for (const NamedParam& param : params) {
    text += fmt::format(
        "{}: [{}] {}\n",
        param.name,
        fmt::join(param.tensor.sizes(), ", "),
        c10::toString(param.tensor.scalar_type()));
  }
  return text;
}

// FNV-1a, 64 bits.
int64_t hash(const std::string& text) {
  uint64_t value = 14695981039346656037ULL;
  for (const char c : text)
    value = (value ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return static_cast<int64_t>(value);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

[[noreturn]] void throw_first_difference(
    const std::string& first,
    const std::string& other,
    int other_rank,
    const std::string& group) {
  const auto a = lines_of(first);
  const auto b = lines_of(other);
  const size_t count = std::max(a.size(), b.size());
  for (size_t i = 0; i < count; ++i) {
    const std::string here = i < a.size() ? a[i] : "nothing";
    const std::string there = i < b.size() ? b[i] : "nothing";
    if (here == there)
      continue;
    throw CommError(fmt::format(
        "[data_parallel] replicas differ in group '{}' at parameter {}: rank 0 "
        "has '{}', rank {} has '{}'; build the same module on every rank",
        group,
        i,
        here,
        other_rank,
        there));
  }
  throw CommError(
      fmt::format("[data_parallel] replicas differ in '{}'", group));
}

}  // namespace

void check_replicas_alike(
    const std::vector<NamedParam>& params,
    Communicator& communicator) {
  const std::string mine = describe(params);
  const auto ranks = static_cast<int64_t>(communicator.size());
  const auto summary = torch::tensor(
      {hash(mine), static_cast<int64_t>(mine.size())}, torch::kLong);
  auto summaries = torch::empty({ranks, 2}, torch::kLong);
  communicator.all_gather(summaries, summary)->wait();
  int different = -1;
  for (int rank = communicator.size() - 1; rank > 0; --rank) {
    if (!torch::equal(summaries[rank], summaries[0]))
      different = rank;
  }
  if (different < 0)
    return;
  const int64_t longest = summaries.select(1, 1).max().item<int64_t>();
  auto text = torch::zeros({longest}, torch::kByte);
  std::memcpy(text.data_ptr(), mine.data(), mine.size());
  auto texts = torch::empty({ranks, longest}, torch::kByte);
  communicator.all_gather(texts, text)->wait();
  const auto text_of = [&](int rank) {
    const auto row = texts[rank];
    return std::string(
        static_cast<const char*>(row.data_ptr()),
        static_cast<size_t>(summaries[rank][1].item<int64_t>()));
  };
  throw_first_difference(
      text_of(0), text_of(different), different, communicator.name());
}

void broadcast_from_rank_0(
    const std::vector<torch::Tensor>& tensors,
    Communicator& communicator) {
  const torch::NoGradGuard no_grad;
  std::vector<WorkPtr> works;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  for (const auto& tensor : tensors) {
    auto contiguous = tensor.detach().contiguous();
    works.push_back(communicator.broadcast(contiguous, 0));
    if (contiguous.data_ptr() != tensor.data_ptr())
      copies.emplace_back(tensor.detach(), contiguous);
  }
  for (const auto& work : works)
    work->wait();
  for (auto& [tensor, contiguous] : copies)
    tensor.copy_(contiguous);
}

}  // namespace brigade
