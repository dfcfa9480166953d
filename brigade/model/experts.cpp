#include "brigade/model/experts.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "brigade/ops/expert_linear.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/swiglu.h"
#include "brigade/tensor_parallel/mappings.h"
#include "brigade/topology/sequence_partition.h"

namespace brigade {

using torch::Tensor;

namespace {

// Gives names without giving behaviour: "experts", "experts.0".
class ExpertFolder : public torch::nn::Module {};

// The input of products that each tp rank makes a part of.
Tensor enter_region(const Tensor& x, const TensorParallel& parallel) {
  if (parallel.size() == 1)
    return x;
  return parallel.tokens == TokenLayout::kSharded
             ? gather_tokens(x, parallel.group)
             : copy_region(x, parallel.group);
}

ops::RemadeInput activation_of(
    const std::vector<Tensor>& gate_up,
    ops::Kernels kernels) {
  return {.from = gate_up, .make = [kernels](const std::vector<Tensor>& of) {
            return ops::swiglu(of[0], of[1], kernels);
          }};
}

}  // namespace

Experts::Experts(
    const ModelContextPtr& context,
    int64_t layer,
    const ExpertsDescription& description,
    const ExpertRange& range,
    const ParameterSource& source)
    : context_(context), layer_(layer), description_(description) {
  // Registered in the order of the table.
  router_.emplace(*this, context, description, source);
  const auto folder =
      register_module("experts", std::make_shared<ExpertFolder>());
  const int64_t end = std::min(range.end, description.count);
  for (int64_t expert = range.begin; expert < end; ++expert)
    add_expert(*folder, expert, source.inside("experts"));
  if (!description.shared)
    return;
  const std::string& name = description.shared->name;
  shared_ = register_module(
      name,
      std::make_shared<Mlp>(
          context, description.shared->mlp, source.inside(name)));
  if (description.shared->has_gate)
    shared_gate_ = register_module(name + "_gate", source.make(name + "_gate"));
}

void Experts::add_expert(
    torch::nn::Module& parent,
    int64_t expert,
    const ParameterSource& source) {
  const std::string name = std::to_string(expert);
  const ParameterSource inside = source.inside(name);
  const auto module =
      parent.register_module(name, std::make_shared<ExpertFolder>());
  GroupedWeights gate_up = inside.make_group(*module, "gate_up_proj");
  experts_.push_back(
      {std::move(gate_up),
       module->register_module(
           description_.down, inside.make(description_.down))});
}

Tensor Experts::forward(
    const Tensor& x,
    const ExpertInputs& inputs,
    KeptRouting& kept) {
  const TensorParallel& parallel = context_->tensor_parallel;
  const bool is_first = !kept.experts.defined();
  if (is_first)
    kept.load = given_shares(x, inputs);
  const Tensor weights =
      enter_region(router_->route(x, inputs, kept), parallel);
  if (is_first) {
    const Tensor experts = enter_region(kept.experts, parallel);
    const int64_t ranks = context_->expert_parallel->size();
    const int64_t parts = parts_of_exchange();
    kept.order = ops::order_by_expert(
        experts,
        sending_order(description_.count, ranks, parts),
        kept_choices(experts, inputs));
    note_routing(experts, inputs, kept.order, weights);
    kept.exchange = ExpertExchange(
        context_->expert_parallel, kept.order.counts, parts, x.device());
    if (context_->dropout.is_used())
      kept.row_keys = keys_of_rows(kept);
  }
  const ExpertExchange& exchange = kept.exchange;
  const auto sent = exchange.send(ops::rows_of_tokens(
      enter_region(x, parallel), kept.order, context_->kernels));
  // Alone it comes last: gradients are ready in the order of their buckets.
  const bool shared_first = context_->expert_parallel->size() > 1;
  Tensor shared;
  if (shared_ && shared_first)
    shared = run_shared(x);
  ExpertExchange::UnderWay back;
  for (size_t part = 0; part < exchange.parts().size(); ++part)
    exchange.send_back(
        back, run_experts(exchange.arrive(sent, part), kept, part));
  const Tensor done = exchange.arrive_back(back);
  const Tensor sum = leave_region(
      ops::combine_rows(done, weights, kept.order, context_->kernels),
      parallel);
  if (shared_ && !shared_first)
    shared = run_shared(x);
  return shared.defined() ? sum + shared : sum;
}

// Places in a sequence are of the whole one, of which several ranks have parts.
Tensor Experts::kept_choices(const Tensor& experts, const ExpertInputs& inputs)
    const {
  if (inputs.capacity_factor == 0)
    return {};
  const torch::NoGradGuard no_grad;
  Communicator& ranks = *context_->sequence;
  const Tensor local =
      experts.view({inputs.sequences, -1, experts.size(1)}).contiguous();
  const int64_t tokens = local.size(1) * ranks.size();
  const auto places = [&](int rank) {
    return torch::tensor(
        token_positions(tokens, ranks.size(), rank), experts.options());
  };
  Tensor whole = local;
  if (ranks.size() > 1) {
    Tensor all = torch::empty(
        {ranks.size(), local.size(0), local.size(1), local.size(2)},
        local.options());
    ranks.all_gather(all, local)->wait();
    whole =
        torch::empty({local.size(0), tokens, local.size(2)}, local.options());
    for (int rank = 0; rank < ranks.size(); ++rank)
      whole.index_copy_(1, places(rank), all[rank]);
  }
  const double even = static_cast<double>(tokens * description_.per_token) /
                      static_cast<double>(description_.count);
  // 1.1 times 50 is 55, not the next float64 above it.
  constexpr double kRounding = 1 - 1e-12;
  const double capacity = std::min(
      std::ceil(even * inputs.capacity_factor * kRounding),
      static_cast<double>(tokens));
  return ops::within_capacity(
             whole, description_.count, static_cast<int64_t>(capacity))
      .index_select(1, places(ranks.rank()))
      .view(experts.sizes());
}

// Rows travel while the shared expert computes; without one, while experts do.
int64_t Experts::parts_of_exchange() const {
  const int64_t own = description_.count / context_->expert_parallel->size();
  return shared_ ? 1 : std::min<int64_t>(2, own);
}

// Rows of one token have its key.
std::vector<Tensor> Experts::keys_of_rows(const KeptRouting& kept) const {
  const torch::NoGradGuard no_grad;
  const auto sent = kept.exchange.send(ops::rows_of_tokens(
      context_->dropout.token_keys.unsqueeze(1), kept.order));
  std::vector<Tensor> keys;
  for (size_t part = 0; part < kept.exchange.parts().size(); ++part)
    keys.push_back(kept.exchange.arrive(sent, part).flatten());
  return keys;
}

Tensor Experts::given_shares(const Tensor& x, const ExpertInputs& inputs)
    const {
  if (!context_->routers || !context_->routers->shares)
    return {};
  const auto& known = *context_->routers->shares;
  const auto found = known.find(layer_);
  const auto options = x.options().dtype(ops::wide_dtype(x));
  const Tensor shares = found != known.end()
                            ? found->second.to(options)
                            : torch::full(
                                  {description_.count},
                                  1.0 / static_cast<double>(description_.count),
                                  options);
  return shares.expand({inputs.sequences, description_.count});
}

void Experts::note_routing(
    const Tensor& experts,
    const ExpertInputs& inputs,
    const ops::ExpertOrder& order,
    const Tensor& weights) const {
  if (!context_->routers)
    return;
  const torch::NoGradGuard no_grad;
  RouterStatistics& noted = context_->routers->noted[layer_];
  noted.chosen.resize(order.counts.size(), 0);
  if (!noted.squares.defined()) {
    noted.squares = router_->squares();
    noted.given = torch::zeros_like(noted.squares);
  }
  noted.given += weights.sum(torch::kDouble);
  if (context_->tensor_parallel.rank() > 0)
    return;
  std::vector<int64_t> chosen = order.counts;
  if (order.is_kept.defined()) {
    const Tensor counts =
        torch::bincount(experts.flatten(), {}, description_.count).cpu();
    const auto of_expert = counts.accessor<int64_t, 1>();
    for (size_t i = 0; i < chosen.size(); ++i)
      chosen[i] = of_expert[static_cast<int64_t>(i)];
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    noted.chosen[i] += chosen[i];
    noted.dropped += chosen[i] - order.counts[i];
  }
  if (!context_->routers->counts_choices || !inputs.has_loss.defined())
    return;
  const Tensor learned = torch::bincount(
      experts.masked_select(inputs.has_loss.unsqueeze(1)),
      {},
      description_.count);
  noted.learned = noted.learned.defined() ? noted.learned + learned : learned;
}

// Each expert is linears of its own where there are adapters; without, one node
// of autograd has the products of all.
Tensor Experts::run_experts(
    const Tensor& rows,
    const KeptRouting& kept,
    size_t part) const {
  const auto& [first, counts] = kept.exchange.parts()[part];
  const auto experts =
      std::span(experts_).subspan(static_cast<size_t>(first), counts.size());
  if (!has_adapters())
    return run_whole_experts(rows, counts, experts);
  const auto row_parts = torch::split_with_sizes(rows, counts);
  std::vector<Tensor> keys(counts.size());
  if (!kept.row_keys.empty())
    keys = torch::split_with_sizes(kept.row_keys[part], counts);
  std::vector<Tensor> results;
  for (size_t i = 0; i < experts.size(); ++i)
    results.push_back(run_adapted_expert(experts[i], row_parts[i], keys[i]));
  return results.size() == 1 ? results[0] : torch::cat(results);
}

// A target may name one of them alone.
bool Experts::has_adapters() const {
  return std::any_of(
      experts_.begin(), experts_.end(), [](const Expert& expert) {
        auto adapters = expert.gate_up.adapters();
        adapters.push_back(expert.down->adapter);
        return std::any_of(
            adapters.begin(), adapters.end(), [](const ops::LowRank& adapter) {
              return adapter.a.defined();
            });
      });
}

Tensor Experts::run_whole_experts(
    const Tensor& rows,
    const std::vector<int64_t>& counts,
    std::span<const Expert> experts) const {
  std::vector<std::vector<Tensor>> gate_up_weights;
  std::vector<std::vector<Tensor>> down_weights;
  for (const Expert& expert : experts) {
    gate_up_weights.push_back(expert.gate_up.weights());
    down_weights.push_back({expert.down->weight});
  }
  auto options = context_->linear_options();
  const auto gate_up =
      ops::expert_linear(rows, counts, gate_up_weights, options);
  options.input = activation_of(gate_up, context_->kernels);
  return ops::expert_linear(
      options.input.make(gate_up), counts, down_weights, options)[0];
}

// An expert without rows has products of no rows too: its weights' gradients
// are ready at the same place on every rank.
Tensor Experts::run_adapted_expert(
    const Expert& expert,
    const Tensor& rows,
    const Tensor& row_keys) const {
  auto options = context_->linear_options();
  options.adapters = expert.gate_up.adapters();
  options.dropout.token_keys = row_keys;
  const auto gate_up =
      ops::linear_group(rows, expert.gate_up.weights(), {}, options);
  options.input = activation_of(gate_up, context_->kernels);
  options.adapters = {expert.down->adapter};
  options.dropout.first_feature =
      context_->tensor_parallel.rank() * gate_up[0].size(-1);
  return ops::linear(
      options.input.make(gate_up), expert.down->weight, {}, options);
}

Tensor Experts::run_shared(const Tensor& x) {
  const Tensor out = shared_->forward(x);
  if (!shared_gate_)
    return out;
  return out * torch::sigmoid(shared_gate_->narrow_product(*context_, x));
}

}  // namespace brigade
