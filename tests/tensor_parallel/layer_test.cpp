// A whole Llama layer cut over tp ranks against the same layer on one rank,
// written in plain torch operations on the whole weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "brigade/model_spec/shard.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"
#include "brigade/tensor_parallel/parallel_linear.h"
#include "brigade/tensor_parallel/replicated_gradients.h"
#include "tests/support/compare.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/reference_ops.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using torch::Tensor;

constexpr int64_t kBatch = 2;
constexpr int64_t kTokens = 6;
constexpr int64_t kNumTokens = kBatch * kTokens;
constexpr int64_t kHidden = 10;
constexpr double kEps = 1e-5;
constexpr int64_t kHeads = 12;
constexpr int64_t kHeadDim = 6;
constexpr int64_t kWidth = 24;

using Weights = std::map<std::string, Tensor>;

std::string full_name(const std::string& name) {
  return "model.layers.0." + name;
}

Weights full_weights(int64_t kv_heads, torch::ScalarType dtype) {
  const int64_t q = kHeads * kHeadDim;
  const int64_t kv = kv_heads * kHeadDim;
  const int64_t f = kWidth;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"input_layernorm.weight", {kHidden}},
      {"self_attn.q_proj.weight", {q, kHidden}},
      {"self_attn.q_proj.bias", {q}},
      {"self_attn.k_proj.weight", {kv, kHidden}},
      {"self_attn.k_proj.bias", {kv}},
      {"self_attn.v_proj.weight", {kv, kHidden}},
      {"self_attn.v_proj.bias", {kv}},
      {"self_attn.q_norm.weight", {kHeadDim}},
      {"self_attn.k_norm.weight", {kHeadDim}},
      {"self_attn.o_proj.weight", {kHidden, q}},
      {"self_attn.o_proj.bias", {kHidden}},
      {"post_attention_layernorm.weight", {kHidden}},
      {"mlp.gate_proj.weight", {f, kHidden}},
      {"mlp.up_proj.weight", {f, kHidden}},
      {"mlp.down_proj.weight", {kHidden, f}},
      {"mlp.down_proj.bias", {kHidden}}};
  Weights weights;
  for (const auto& [name, shape] : shapes) {
    weights[name] = torch::randn(shape) * (shape.size() == 2 ? 0.3 : 0.2) +
                    (name.find("norm") != std::string::npos ? 1.0 : 0.0);
    weights[name] = weights[name].to(dtype);
  }
  return weights;
}

Tensor linear(const Tensor& x, const Weights& w, const std::string& name) {
  const auto bias = w.find(name + ".bias");
  const Tensor y = torch::matmul(x, w.at(name + ".weight").t());
  return bias == w.end() ? y : y + bias->second;
}

// x: [B, T, C].
Tensor plain_layer(const Tensor& x, const Weights& w) {
  const auto norm = [&](const Tensor& value, const std::string& name) {
    return testing::reference::rms_norm(value, w.at(name + ".weight"), kEps);
  };
  const auto heads = [&](const Tensor& flat) {
    return flat.unflatten(-1, {-1, kHeadDim});
  };
  const Tensor h = norm(x, "input_layernorm");
  const Tensor out =
      testing::reference::attention(
          norm(heads(linear(h, w, "self_attn.q_proj")), "self_attn.q_norm"),
          norm(heads(linear(h, w, "self_attn.k_proj")), "self_attn.k_norm"),
          heads(linear(h, w, "self_attn.v_proj")),
          {})
          .out.flatten(-2);
  const Tensor y = x + linear(out, w, "self_attn.o_proj");
  const Tensor z = norm(y, "post_attention_layernorm");
  return y +
         linear(
             testing::reference::swiglu(
                 linear(z, w, "mlp.gate_proj"), linear(z, w, "mlp.up_proj")),
             w,
             "mlp.down_proj");
}

// x: [N, C], or [N/tp, C] where tokens are sharded.
Tensor parallel_layer(
    const TensorParallel& parallel,
    const Tensor& x,
    const Weights& w,
    ops::WeightGrad mode) {
  const ops::LinearOptions options{.weight_grad = mode};
  const auto norm = [&](const Tensor& value, const std::string& name) {
    return ops::rms_norm(value, w.at(name + ".weight"), kEps, mode);
  };
  const auto heads = [&](const Tensor& flat) {
    return flat.unflatten(0, {kBatch, kTokens}).unflatten(-1, {-1, kHeadDim});
  };
  const auto group = [&](const Tensor& input,
                         const std::vector<std::string>& names) {
    std::vector<Tensor> weights;
    std::vector<Tensor> biases;
    for (const std::string& name : names) {
      weights.push_back(w.at(name + ".weight"));
      const auto bias = w.find(name + ".bias");
      biases.push_back(bias == w.end() ? Tensor() : bias->second);
    }
    return column_parallel_linear(parallel, input, weights, biases, options);
  };
  const auto row = [&](const Tensor& input, const std::string& name) {
    return row_parallel_linear(
        parallel, input, w.at(name + ".weight"), w.at(name + ".bias"), options);
  };
  const auto qkv = group(
      norm(x, "input_layernorm"),
      {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
  const Tensor out = ops::attention(
                         norm(heads(qkv[0]), "self_attn.q_norm"),
                         norm(heads(qkv[1]), "self_attn.k_norm"),
                         heads(qkv[2]))
                         .out.reshape({kNumTokens, -1});
  const Tensor y = x + row(out, "self_attn.o_proj");
  const auto gate_up = group(
      norm(y, "post_attention_layernorm"), {"mlp.gate_proj", "mlp.up_proj"});
  return y + row(ops::swiglu(gate_up[0], gate_up[1]), "mlp.down_proj");
}

// The inputs, outputs and gradients of the whole layer on one rank.
struct Oracle {
  torch::ScalarType dtype;
  int64_t kv_heads;
  Weights weights;
  Weights gradients;
  std::vector<Tensor> inputs;        // one per micro-batch: [N, C]
  std::vector<Tensor> output_grads;  // [N, C]
  std::vector<Tensor> outputs;       // [N, C]
  std::vector<Tensor> input_grads;   // [N, C]
};

Oracle
make_oracle(int64_t kv_heads, torch::ScalarType dtype, int micro_batches) {
  torch::manual_seed(7);
  Oracle oracle{
      dtype, kv_heads, full_weights(kv_heads, dtype), {}, {}, {}, {}, {}};
  Weights leaves;
  for (const auto& [name, weight] : oracle.weights)
    leaves[name] = weight.to(torch::kFloat).clone().set_requires_grad(true);
  for (int i = 0; i < micro_batches; ++i) {
    const Tensor x = torch::randn({kNumTokens, kHidden}).to(dtype);
    const Tensor dy = torch::randn({kNumTokens, kHidden}).to(dtype);
    const Tensor leaf = x.to(torch::kFloat)
                            .view({kBatch, kTokens, kHidden})
                            .clone()
                            .set_requires_grad(true);
    const Tensor y = plain_layer(leaf, leaves);
    y.backward(dy.to(torch::kFloat).view_as(y));
    oracle.inputs.push_back(x);
    oracle.output_grads.push_back(dy);
    oracle.outputs.push_back(y.detach().view({kNumTokens, kHidden}));
    oracle.input_grads.push_back(leaf.grad().view({kNumTokens, kHidden}));
  }
  for (const auto& [name, leaf] : leaves)
    oracle.gradients[name] = leaf.grad();
  return oracle;
}

struct Layout {
  int tp = 1;
  TokenLayout tokens = TokenLayout::kReplicated;
};

struct Local {
  Weights weights;
  std::map<std::string, ParamShard> shards;
};

Tensor part_of(const Tensor& full, const Slice& slice) {
  return slice.dim == kNotCut
             ? full
             : full.narrow(slice.dim, slice.begin, slice.length());
}

// The rows of a table with this layer alone.
std::vector<ParameterRow> rows_of(const Oracle& oracle) {
  DecoderConfig config;
  config.hidden_size = kHidden;
  config.num_attention_heads = kHeads;
  config.num_key_value_heads = oracle.kv_heads;
  config.head_dim = kHeadDim;
  config.intermediate_size = kWidth;
  config.num_hidden_layers = 1;
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  return list_parameters(describe_model(config), {{0, 1}, false, false});
}

Local cut(const Oracle& oracle, const Layout& layout, int rank) {
  Local local;
  for (const ParameterRow& row : rows_of(oracle)) {
    const std::string name = row.name.substr(full_name("").size());
    const auto found = oracle.weights.find(name);
    if (found == oracle.weights.end())
      continue;  // gate's and up's bias
    const Tensor& full = found->second;
    EXPECT_EQ(full.sizes().vec(), row.shape) << name;
    const ParamShard shard =
        shard_parameter(row, {.tp = layout.tp}, {.tp = rank}, layout.tokens);
    local.shards[name] = shard;
    local.weights[name] =
        part_of(full, shard.slice).clone().set_requires_grad(true);
  }
  EXPECT_EQ(local.weights.size(), oracle.weights.size());
  return local;
}

// This rank's rows of x, if tokens are sharded.
Tensor my_tokens(const Tensor& x, const Layout& layout, int rank) {
  if (layout.tokens == TokenLayout::kReplicated)
    return x;
  const int64_t rows = x.size(0) / layout.tp;
  return x.narrow(0, rank * rows, rows);
}

void sum_replicated(Communicator& group, const Local& local) {
  std::map<int, std::vector<Tensor>> by_ranks;
  for (const auto& [name, shard] : local.shards)
    by_ranks[shard.gradient_ranks].push_back(local.weights.at(name).grad());
  for (const auto& [ranks, gradients] : by_ranks)
    sum_over_replicas(group, ranks, gradients);
}

// Runs the layer on every rank and compares all there is with the oracle.
void check_layer(
    const Oracle& oracle,
    const Layout& layout,
    ops::WeightGrad mode) {
  const double limit = testing::tolerance(oracle.dtype);
  testing::run_ranks(layout.tp, [&](const CommunicatorPtr& group) {
    const Local local = cut(oracle, layout, group->rank());
    if (mode == ops::WeightGrad::kAccumulate) {
      for (const auto& [name, weight] : local.weights) {
        Tensor(weight).mutable_grad() =
            torch::zeros(weight.sizes(), torch::kFloat);
      }
    }
    const std::string where = fmt::format(
        "tp {} rank {} kv heads {}{}",
        layout.tp,
        group->rank(),
        oracle.kv_heads,
        layout.tokens == TokenLayout::kSharded ? " sharded" : "");
    for (size_t i = 0; i < oracle.inputs.size(); ++i) {
      const auto mine = [&](const std::vector<Tensor>& whole) {
        return my_tokens(whole[i], layout, group->rank());
      };
      const Tensor x = mine(oracle.inputs).clone().set_requires_grad(true);
      const Tensor y =
          parallel_layer({group, layout.tokens}, x, local.weights, mode);
      testing::expect_close(y, mine(oracle.outputs), limit, where + " output");
      y.backward(mine(oracle.output_grads));
      testing::expect_close(
          x.grad(), mine(oracle.input_grads), limit, where + " input grad");
    }
    sum_replicated(*group, local);
    for (const auto& [name, weight] : local.weights)
      testing::expect_close(
          weight.grad(),
          part_of(oracle.gradients.at(name), local.shards.at(name).slice),
          limit,
          where + " " + name);
  });
}

std::vector<Layout> layouts() {
  std::vector<Layout> result;
  for (int tp : {1, 2, 3, 4}) {
    for (const auto tokens : {TokenLayout::kReplicated, TokenLayout::kSharded})
      result.push_back({tp, tokens});
  }
  return result;
}

TEST(ParallelLayer, EqualsOneRankInFloat32) {
  for (const int64_t kv_heads : {1, 2, 4, 12}) {
    const Oracle oracle = make_oracle(kv_heads, torch::kFloat, 1);
    for (const Layout& layout : layouts()) {
      std::vector<std::string> problems;
      validate_tensor_parallel(
          {kHeads, oracle.kv_heads, kWidth}, {.tp = layout.tp}, problems);
      if (problems.empty())
        check_layer(oracle, layout, ops::WeightGrad::kReturn);
    }
  }
}

TEST(ParallelLayer, EqualsOneRankInBfloat16) {
  const Oracle oracle = make_oracle(2, torch::kBFloat16, 1);
  for (const Layout& layout : layouts()) {
    if (layout.tp != 3)
      check_layer(oracle, layout, ops::WeightGrad::kReturn);
  }
}

TEST(ParallelLayer, AccumulatesTwoMicroBatchesIntoMainGrad) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const Oracle oracle = make_oracle(2, dtype, 2);
    for (const Layout& layout : layouts()) {
      if (layout.tp != 3)
        check_layer(oracle, layout, ops::WeightGrad::kAccumulate);
    }
  }
}

// What a layer launches in forward and in backward, on any rank.
struct Launches {
  std::vector<Collective> forward;
  std::vector<Collective> backward;
  std::vector<int64_t> bytes;
};

Launches launches_of(const Layout& layout) {
  const Oracle oracle = make_oracle(2, torch::kFloat, 1);
  Launches launches;
  testing::run_ranks(layout.tp, [&](const CommunicatorPtr& group) {
    const Local local = cut(oracle, layout, group->rank());
    const auto mine = [&](const Tensor& whole) {
      return my_tokens(whole, layout, group->rank());
    };
    const Tensor x = mine(oracle.inputs[0]).clone().set_requires_grad(true);
    group->clear_records();
    const Tensor y = parallel_layer(
        {group, layout.tokens}, x, local.weights, ops::WeightGrad::kReturn);
    const auto forward = group->records();
    group->clear_records();
    y.backward(mine(oracle.output_grads[0]));
    const auto backward = group->records();
    if (group->rank() != 0)
      return;
    for (const auto& record : forward)
      launches.forward.push_back(record.op);
    for (const auto& record : backward)
      launches.backward.push_back(record.op);
    for (const auto* records : {&forward, &backward}) {
      for (const auto& record : *records)
        launches.bytes.push_back(record.bytes);
    }
  });
  return launches;
}

TEST(ParallelLayer, AllReducesTwiceForwardAndTwiceBackward) {
  for (int tp : {2, 4}) {
    const Launches launches = launches_of({tp, TokenLayout::kReplicated});
    const std::vector<Collective> two(2, Collective::kAllReduce);
    EXPECT_THAT(launches.forward, ElementsAreArray(two));
    EXPECT_THAT(launches.backward, ElementsAreArray(two));
    EXPECT_THAT(
        launches.bytes,
        ElementsAreArray(std::vector<int64_t>(4, kNumTokens * kHidden * 4)));
  }
}

TEST(ParallelLayer, GathersAndScattersInsteadWhereTokensAreSharded) {
  constexpr auto kGather = Collective::kAllGather;
  constexpr auto kScatter = Collective::kReduceScatter;
  for (int tp : {2, 4}) {
    const Launches launches = launches_of({tp, TokenLayout::kSharded});
    EXPECT_THAT(
        launches.forward, ElementsAre(kGather, kScatter, kGather, kScatter));
    EXPECT_THAT(
        launches.backward, ElementsAre(kGather, kScatter, kGather, kScatter));
    EXPECT_THAT(
        launches.bytes,
        ElementsAreArray(std::vector<int64_t>(8, kNumTokens * kHidden * 4)));
  }
}

TEST(ParallelLayer, LaunchesNothingWhereItIsWhole) {
  for (const auto tokens : {TokenLayout::kReplicated, TokenLayout::kSharded}) {
    const Launches launches = launches_of({1, tokens});
    EXPECT_THAT(launches.forward, ElementsAre());
    EXPECT_THAT(launches.backward, ElementsAre());
  }
}

}  // namespace
}  // namespace brigade
