#include "brigade/expert_parallel/expert_exchange.h"

#include <tuple>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/expert_rows.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade {

using torch::Tensor;
using torch::autograd::variable_list;

// What is under way between two calls, or in backward, in the opposite
// direction, between the nodes of these calls. Outlives backward: a message
// that was waited for is let go, with its tensors.
struct ExpertExchange::Passage {
  struct Message {
    WorkPtr work;
    Tensor sent;
  };

  CommunicatorPtr group;
  std::shared_ptr<const Routes> routes;
  Tensor whole = {};  // [R, C], the rows of this rank's tokens
  std::vector<Message> messages = std::vector<Message>(routes->size());

  void
  launch(size_t part, const Tensor& to, const Tensor& from, RowSplits splits) {
    messages[part] = {
        group->all_to_all_single(to, from, splits), /*sent=*/from};
  }

  // Sends `tokens`, [R, C]; returns what each part's experts will have. The
  // part whose values are waited for first goes first.
  variable_list launch_all(const Tensor& tokens, bool last_part_first) {
    const Tensor rows = tokens.contiguous();
    variable_list result(routes->size());
    for (size_t i = 0; i < routes->size(); ++i) {
      const size_t part = last_part_first ? routes->size() - 1 - i : i;
      const Route& route = (*routes)[part];
      result[part] =
          torch::empty({route.received, rows.size(1)}, rows.options());
      launch(
          part,
          result[part],
          rows.narrow(0, route.first_row, route.sent),
          route.splits);
    }
    return result;
  }

  void await(size_t part) { std::exchange(messages[part], {}).work->wait(); }

  // The reverse of launch_all(), for one part, into `whole`.
  void launch_back(size_t part, const Tensor& rows) {
    if (!whole.defined()) {
      const Route& last = routes->back();
      whole = torch::empty(
          {last.first_row + last.sent, rows.size(1)}, rows.options());
    }
    const Route& route = (*routes)[part];
    launch(
        part,
        whole.narrow(0, route.first_row, route.sent),
        rows.contiguous(),
        {.output = route.splits.input, .input = route.splits.output});
  }

  Tensor await_all() {
    for (size_t part = 0; part < messages.size(); ++part)
      await(part);
    return std::exchange(whole, Tensor());
  }
};

namespace {

using Passage = ExpertExchange::Passage;

// Between a pair of nodes there are tensors of the parts, of the right shape,
// so that autograd runs one after the other. The values are in the passage, or
// arrive in them.
template <typename Node>
struct PassageNode : ops::OnceDifferentiable<Node> {
  static constexpr const char* kName = "expert_exchange";
};

struct Call {
  std::shared_ptr<Passage> passage;
  size_t part = 0;
};

struct SendNode : PassageNode<SendNode> {
  static variable_list
  forward(AutogradContext* context, const Tensor& rows, const Call& call) {
    ops::carry(context, call);
    return call.passage->launch_all(rows, /*last_part_first=*/false);
  }
  static variable_list gradients_of(
      AutogradContext* context,
      variable_list /*gradients*/) {
    return {ops::carried<Call>(context).passage->await_all(), Tensor()};
  }
};

struct ArriveNode : PassageNode<ArriveNode> {
  static Tensor
  forward(AutogradContext* context, const Tensor& rows, const Call& call) {
    ops::carry(context, call);
    call.passage->await(call.part);
    return rows.view(rows.sizes());
  }
  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto& call = ops::carried<Call>(context);
    call.passage->launch_back(call.part, gradients[0]);
    return {gradients[0], Tensor()};
  }
};

struct SendBackNode : PassageNode<SendBackNode> {
  static Tensor
  forward(AutogradContext* context, const Tensor& rows, const Call& call) {
    ops::carry(context, call);
    call.passage->launch_back(call.part, rows);
    return rows.view(rows.sizes());
  }
  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto& call = ops::carried<Call>(context);
    call.passage->await(call.part);
    return {gradients[0], Tensor()};
  }
};

struct ArriveBackNode : PassageNode<ArriveBackNode> {
  static Tensor forward(
      AutogradContext* context,
      at::TensorList /*parts*/,
      const Call& call) {
    ops::carry(context, call);
    return call.passage->await_all();
  }
  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    variable_list result = ops::carried<Call>(context).passage->launch_all(
        gradients[0], /*last_part_first=*/true);
    result.emplace_back();
    return result;
  }
};

// What each rank has for each of this rank's experts: [ranks][experts].
std::vector<int64_t> exchange_counts(
    Communicator& group,
    const std::vector<int64_t>& counts) {
  Tensor mine = torch::tensor(counts, torch::kLong);
  Tensor theirs = torch::empty_like(mine);
  group.all_to_all(theirs, mine)->wait_on_host();
  const auto values = theirs.accessor<int64_t, 1>();
  std::vector<int64_t> result;
  for (int64_t i = 0; i < theirs.numel(); ++i)
    result.push_back(values[i]);
  return result;
}

// From rows by rank and then by expert, as many as `counts`, [ranks][experts],
// to rows by expert and then by rank; and the inverse.
std::pair<Tensor, Tensor> regroup(
    const std::vector<int64_t>& counts,
    size_t experts,
    torch::Device device) {
  std::vector<int64_t> begins;
  int64_t total = 0;
  for (const int64_t count : counts) {
    begins.push_back(total);
    total += count;
  }
  std::vector<int64_t> by_expert;
  std::vector<int64_t> by_rank(static_cast<size_t>(total));
  for (size_t expert = 0; expert < experts; ++expert) {
    for (size_t at = expert; at < counts.size(); at += experts) {
      for (int64_t from = begins[at]; from < begins[at] + counts[at]; ++from) {
        by_rank[static_cast<size_t>(from)] =
            static_cast<int64_t>(by_expert.size());
        by_expert.push_back(from);
      }
    }
  }
  return {
      torch::tensor(by_expert, torch::kLong).to(device),
      torch::tensor(by_rank, torch::kLong).to(device)};
}

// The range of a rank's `experts` that is in a part.
std::pair<int64_t, int64_t>
range_of(int64_t part, int64_t experts, int64_t parts) {
  return {part * experts / parts, (part + 1) * experts / parts};
}

}  // namespace

std::vector<int64_t>
sending_order(int64_t experts, int64_t ranks, int64_t parts) {
  const int64_t local = experts / ranks;
  std::vector<int64_t> order;
  for (int64_t part = 0; part < parts; ++part) {
    const auto [begin, end] = range_of(part, local, parts);
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t expert = begin; expert < end; ++expert)
        order.push_back(rank * local + expert);
  }
  return order;
}

ExpertExchange::ExpertExchange(
    CommunicatorPtr group,
    const std::vector<int64_t>& counts,
    int64_t parts,
    torch::Device device)
    : group_(std::move(group)) {
  const int64_t ranks = group_->size();
  const auto experts = static_cast<int64_t>(counts.size()) / ranks;
  BRIGADE_ASSERT(
      experts * ranks == static_cast<int64_t>(counts.size()) &&
          parts <= experts,
      "{} experts over {} ranks in {} parts",
      counts.size(),
      ranks,
      parts);
  if (ranks == 1) {
    parts_.push_back({.first_expert = 0, .counts = counts});
    return;
  }
  const std::vector<int64_t> arriving = exchange_counts(*group_, counts);
  Routes routes;
  int64_t first_row = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const auto [begin, end] = range_of(part, experts, parts);
    Route route{.first_row = first_row};
    Part mine{
        .first_expert = begin,
        .counts = std::vector<int64_t>(static_cast<size_t>(end - begin))};
    std::vector<int64_t> from_ranks;  // [ranks][experts of the part]
    for (int64_t rank = 0; rank < ranks; ++rank) {
      int64_t sent = 0;
      int64_t received = 0;
      for (int64_t expert = begin; expert < end; ++expert) {
        const auto at = static_cast<size_t>(rank * experts + expert);
        sent += counts[at];
        received += arriving[at];
        from_ranks.push_back(arriving[at]);
        mine.counts[static_cast<size_t>(expert - begin)] += arriving[at];
      }
      route.splits.input.push_back(sent);
      route.splits.output.push_back(received);
      route.sent += sent;
      route.received += received;
    }
    std::tie(route.by_expert, route.by_rank) =
        regroup(from_ranks, mine.counts.size(), device);
    first_row += route.sent;
    routes.push_back(std::move(route));
    parts_.push_back(std::move(mine));
  }
  routes_ = std::make_shared<const Routes>(std::move(routes));
}

ExpertExchange::UnderWay ExpertExchange::send(const Tensor& rows) const {
  if (!routes_)
    return {.passage = {}, .parts = {rows}};
  UnderWay sent{
      .passage = std::make_shared<Passage>(
          Passage{.group = group_, .routes = routes_}),
      .parts = {}};
  sent.parts = SendNode::apply(rows, Call{sent.passage});
  return sent;
}

Tensor ExpertExchange::arrive(const UnderWay& rows, size_t part) const {
  if (!routes_)
    return rows.parts[part];
  const Route& route = (*routes_)[part];
  return ops::permute_rows(
      ArriveNode::apply(rows.parts[part], Call{rows.passage, part}),
      route.by_expert,
      route.by_rank);
}

void ExpertExchange::send_back(UnderWay& back, const Tensor& rows) const {
  const size_t part = back.parts.size();
  if (!routes_) {
    back.parts.push_back(rows);
    return;
  }
  if (!back.passage)
    back.passage =
        std::make_shared<Passage>(Passage{.group = group_, .routes = routes_});
  const Route& route = (*routes_)[part];
  back.parts.push_back(SendBackNode::apply(
      ops::permute_rows(rows, route.by_rank, route.by_expert),
      Call{back.passage, part}));
}

Tensor ExpertExchange::arrive_back(const UnderWay& back) const {
  if (!routes_)
    return back.parts.front();
  return ArriveBackNode::apply(at::TensorList(back.parts), Call{back.passage});
}

}  // namespace brigade
