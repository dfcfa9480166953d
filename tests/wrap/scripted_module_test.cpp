// A torch::jit::Module wrapped like any other, against the same module in C++.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/script.h>

#include <cstdint>
#include <sstream>
#include <string>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "brigade/wrap/forward_casts.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;
using ::testing::ThrowsMessage;

// As torch.jit.save() of Python writes it, and torch::jit::load() reads it.
torch::jit::Module scripted_net(double shift) {
  torch::jit::Module net("Net");
  const auto parameter = [&](torch::IntArrayRef sizes, int64_t seed) {
    return (pseudo_random(sizes, seed) + shift).requires_grad_();
  };
  net.register_parameter("first", parameter({5, 8}, 1), false);
  net.register_parameter("second", parameter({8, 2}, 2), false);
  net.register_buffer("calls", torch::full({1}, shift));
  net.define(R"(
    def forward(self, x, scale: float = 1.0):
        self.calls.add_(1)
        return torch.matmul(torch.tanh(torch.matmul(x, self.first)), self.second) * scale
  )");
  std::stringstream file;
  net.save(file);
  return torch::jit::load(file);
}

std::vector<torch::Tensor> tensors_of(const torch::jit::Module& net) {
  std::vector<torch::Tensor> params;
  for (const auto& param : net.parameters())
    params.push_back(param);
  return params;
}

torch::Tensor scripted_data(int rank, int step) {
  return pseudo_random({4, 5}, 10 * step + rank);
}

TEST(ScriptedModule, TrainsAsTheSameModuleInOneProcess) {
  auto first = pseudo_random({5, 8}, 1).requires_grad_();
  auto second = pseudo_random({8, 2}, 2).requires_grad_();
  torch::optim::Adam alone({first, second}, torch::optim::AdamOptions(0.05));
  for (int step = 0; step < 5; ++step) {
    alone.zero_grad();
    for (int rank = 0; rank < 2; ++rank) {
      const auto y =
          torch::tanh(scripted_data(rank, step).matmul(first)).matmul(second);
      (y.pow(2).mean() / 2).backward();
    }
    alone.step();
  }
  run_ranks(2, [&](CommunicatorPtr world) {
    // Rank 0's values become everyone's.
    DataParallel model(scripted_net(world->rank() * 3.0), world);
    torch::optim::Adam optimizer(
        tensors_of(*model), torch::optim::AdamOptions(0.05));
    for (int step = 0; step < 5; ++step) {
      const auto y =
          model.forward({scripted_data(world->rank(), step)}).toTensor();
      y.pow(2).mean().backward();
      optimizer.step();
    }
    EXPECT_TRUE(
        torch::allclose(model->attr("first").toTensor(), first, 1e-5, 1e-6));
    EXPECT_TRUE(
        torch::allclose(model->attr("second").toTensor(), second, 1e-5, 1e-6));
    EXPECT_EQ(model->attr("calls").toTensor().item<double>(), 5.0);
    EXPECT_EQ(model.sync().params()[0].name, "first");

    // What was trained is saved and loaded as any scripted module.
    std::stringstream file;
    model->save(file);
    EXPECT_TRUE(torch::equal(
        torch::jit::load(file).attr("first").toTensor(),
        model->attr("first").toTensor()));
  });
}

TEST(ScriptedModule, TakesTheOptionsOfAnyOther) {
  run_ranks(2, [](CommunicatorPtr world) {
    WrapOptions wrap;
    wrap.broadcast_buffers = true;
    wrap.mixed_precision = MixedPrecision{};
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    DataParallel model(scripted_net(0), world, options, wrap);
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    double before = 0;
    double after = 0;
    for (int step = 0; step < 20; ++step) {
      model->attr("calls").toTensor().fill_(world->rank() * 10.0);
      const auto y = model.forward({scripted_data(0, 0), 2.0}).toTensor();
      EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(model->attr("calls").toTensor().item<double>(), 1.0);
      const auto loss = y.to(torch::kFloat).pow(2).mean();
      loss.backward();
      optimizer.step(0.02, model.sync().grad_scale(), ops::AfterRead::kZero);
      after = loss.item<double>();
      if (step == 0)
        before = after;
    }
    EXPECT_EQ(model->attr("first").toTensor().scalar_type(), torch::kFloat);
    EXPECT_LT(after, before / 2);
  });
  EXPECT_THAT(
      [&] {
        DataParallel model(
            scripted_net(0), make_world_of_one(), {}, {.ignore = {"third"}});
      },
      ThrowsMessage<UsageError>(HasSubstr("ignore names 'third'")));
}

// A list of lists of tensors, and a list of numbers beside it.
torch::jit::Module scripted_lists() {
  torch::jit::Module net("Lists");
  net.register_parameter("weight", torch::ones({2, 3}).requires_grad_(), false);
  net.define(R"(
    def forward(self, rows: List[List[Tensor]]):
        out: List[List[Tensor]] = []
        for row in rows:
            out.append([torch.matmul(x, self.weight) for x in row])
        return out, [len(rows)]
  )");
  return net;
}

TEST(ScriptedModule, MixedPrecisionSeesTensorsInListsOfLists) {
  WrapOptions wrap;
  wrap.mixed_precision = MixedPrecision{.output_dtype = torch::kFloat};
  DataParallel model(scripted_lists(), make_world_of_one(), {}, wrap);
  c10::List<torch::Tensor> row;
  row.push_back(torch::full({1, 2}, 1.00001F));
  row.push_back(torch::full({1, 2}, 2.0F));
  c10::List<c10::List<torch::Tensor>> rows;
  rows.push_back(row);
  const auto result = model.forward({rows}).toTuple();
  EXPECT_EQ(result->elements()[1].toIntVector(), std::vector<int64_t>{1});
  const auto out = result->elements()[0].toList().get(0).toTensorVector();
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(out[0], torch::full({1, 3}, 2.0F)));
  (out[0] + out[1]).sum().backward();
  EXPECT_TRUE(
      torch::equal(tensors_of(*model)[0].grad(), torch::full({2, 3}, 3.0F)));
  // The caller's own are as they were.
  EXPECT_EQ(torch::Tensor(row[0]).scalar_type(), torch::kFloat);
}

TEST(ScriptedModule, MixedPrecisionRefusesAnObjectThatHasTensors) {
  WrapOptions wrap;
  wrap.mixed_precision = MixedPrecision{};
  DataParallel model(scripted_lists(), make_world_of_one(), {}, wrap);
  EXPECT_THAT(
      [&] { model.forward({scripted_net(0)._ivalue()}); },
      ThrowsMessage<UsageError>(
          HasSubstr("takes or returns a TorchScript object with floating")));
}

TEST(ScriptedModule, MixedPrecisionPassesOnWhatItNeedNotCast) {
  torch::jit::Module counts("Counts");
  counts.register_buffer("calls", torch::ones({1}, torch::kLong));
  counts.register_attribute("none", c10::TensorType::get(), torch::Tensor());
  counts.register_attribute("itself", c10::AnyType::get(), counts._ivalue());
  const auto visited = [](c10::IValue value) {
    EXPECT_TRUE(visit_tensors(value, [](const torch::Tensor&) {}));
    return value;
  };
  EXPECT_TRUE(visited(counts._ivalue()).is(counts._ivalue()));
  counts.register_buffer("mean", torch::ones({1}));
  EXPECT_THROW(visited(counts._ivalue()), UsageError);
  counts.setattr("itself", c10::IValue());  // else it would live for ever

  for (const c10::IValue& list :
       {c10::IValue(c10::List<int64_t>({1})),
        c10::IValue(c10::List<double>({1.0})),
        c10::IValue(c10::List<bool>({true})),
        c10::IValue(c10::List<std::string>({"a"}))})
    EXPECT_TRUE(visited(list).is(list));
}

// What Python has: a module, saved before and after it was trained there on
// both ranks' data.
constexpr const char* kPythonNet = R"(
import sys
try:
    import torch
except ImportError:
    sys.exit(77)

class Body(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(5, 8), torch.nn.Linear(8, 8)])
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()
        self.head = torch.nn.Linear(8, 2, bias=False)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("scale", torch.full((2,), 1.5))

    def forward(self, x):
        return self.head(self.body(x)) * self.scale + self.frozen

def pseudo_random(sizes, seed):
    count = torch.Size(sizes).numel()
    return torch.sin(torch.arange(count) * 1.7 + seed).view(sizes)

net = Net()
with torch.no_grad():
    for seed, param in enumerate(net.parameters()):
        if param.requires_grad:
            param.copy_(pseudo_random(param.shape, seed))
script = torch.jit.script(net)
script.save(sys.argv[1])
optimizer = torch.optim.Adam(
    [p for p in net.parameters() if p.requires_grad], lr=0.05)
for step in range(5):
    optimizer.zero_grad()
    for rank in range(2):
        y = net(pseudo_random((4, 5), 10 * step + rank))
        (y.pow(2).mean() / 2).backward()
    optimizer.step()
torch.jit.script(net).save(sys.argv[2])
)";

TEST(ScriptedModule, TrainsAsItDoesInPython) {
  const testing::RunsFolder folder;
  const std::string before = (folder / "before.pt").string();
  const std::string after = (folder / "after.pt").string();
  // TorchScript compiles from source files.
  const std::string program = (folder / "net.py").string();
  testing::write_file(program, kPythonNet);
  const auto python =
      testing::StartedProgram("/usr/bin/python3", {program, before, after})
          .wait();
  if (python.exit_code == 77)
    GTEST_SKIP() << "this python3 has no torch";
  ASSERT_EQ(python.exit_code, 0) << python.err;
  const auto expected = torch::jit::load(after);
  run_ranks(2, [&](CommunicatorPtr world) {
    for (const auto sharding : {Sharding::kNone, Sharding::kParameters}) {
      auto net = torch::jit::load(before);
      GradSyncOptions options;
      if (sharding != Sharding::kNone)
        options.handover = GradHandover::kMainGrad;
      options.sharding = sharding;
      DataParallel model(net, world, options);
      EXPECT_EQ(model.sync().params()[0].name, "body.layers.0.weight");
      EXPECT_EQ(model.sync().params().size(), 7U);  // one is frozen
      torch::optim::Adam optimizer(
          sharding == Sharding::kNone ? tensors_of(net)
                                      : owned_parameters(model.sync()),
          torch::optim::AdamOptions(0.05));
      for (int step = 0; step < 5; ++step) {
        model.forward({scripted_data(world->rank(), step)})
            .toTensor()
            .pow(2)
            .mean()
            .backward();
        if (sharding == Sharding::kNone)
          optimizer.step();
        else
          model.step(optimizer);
      }
      const FullWeights whole(model.sync());
      const auto trained = net.named_parameters();
      for (const auto& param : expected.named_parameters()) {
        bool is_found = false;
        for (const auto& mine : trained) {
          if (mine.name != param.name)
            continue;
          is_found = true;
          EXPECT_TRUE(torch::allclose(mine.value, param.value, 1e-4, 1e-5))
              << param.name << ", " << to_string(sharding);
        }
        EXPECT_TRUE(is_found) << param.name;
      }
    }
  });
}

}  // namespace
}  // namespace brigade
