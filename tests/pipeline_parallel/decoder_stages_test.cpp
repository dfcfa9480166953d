// A real model in stages: a small Llama, cut by cost, against the same one
// whole.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "brigade/model/decoder_model.h"
#include "brigade/pipeline_parallel/executor.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/topology/layer_partition.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;

constexpr int64_t kRows = 2;            // B
constexpr int64_t kSequenceTokens = 6;  // T
constexpr int kMicroBatches = 4;
constexpr int kLayers = 4;

DecoderConfig small_decoder(bool is_tied) {
  DecoderConfig config;
  config.vocab_size = 37;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.tie_word_embeddings = is_tied;
  return config;
}

// Values from the parameter's name alone.
void fill(DecoderModel& part) {
  const torch::NoGradGuard no_gradients;
  for (auto& item : part.named_parameters()) {
    torch::Tensor& parameter = item.value();
    const auto phase =
        static_cast<double>(std::hash<std::string>{}(item.key()) % 1000);
    const torch::Tensor wave = torch::sin(
        torch::arange(parameter.numel(), torch::kFloat) * 0.7 + phase);
    const double offset = parameter.dim() == 1 ? 1.0 : 0.0;
    parameter.copy_((wave * 0.1 + offset).reshape(parameter.sizes()));
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
}

MicroBatch micro_batch(int k) {
  const auto tokens = [](int64_t shift) {
    return (torch::arange(kRows * kSequenceTokens) * 11 + shift)
        .remainder(37)
        .reshape({kRows, kSequenceTokens});
  };
  return {.ids = tokens(k), .targets = tokens(k + 5), .document_starts = {}};
}

std::shared_ptr<DecoderModel> part_of(
    const DecoderConfig& config,
    const ModelPart& part,
    Recompute recompute,
    const std::shared_ptr<WeightGradientQueue>& queue) {
  ModelContext context = single_rank_context(config);
  context.weight_grad = ops::WeightGrad::kAccumulate;
  context.recompute = recompute;
  if (queue != nullptr)
    context.defer_weight_grad = [queue](std::function<void()> compute) {
      queue->add(std::move(compute));
    };
  auto decoder = std::make_shared<DecoderModel>(
      std::make_shared<const ModelContext>(std::move(context)), part);
  fill(*decoder);
  return decoder;
}

struct StagesCase {
  ScheduleKind kind;
  int virtual_stages;
  Recompute recompute;
  bool is_tied;
};

void expect_gradients_of_the_whole_model(
    const CommunicatorPtr& pp,
    const StagesCase& one) {
  const DecoderConfig config = small_decoder(one.is_tied);
  const torch::Tensor positions = torch::arange(kSequenceTokens);

  const auto whole =
      part_of(config, whole_model(config), Recompute::kNone, nullptr);
  double whole_loss = 0;
  for (int k = 0; k < kMicroBatches; ++k) {
    const torch::Tensor loss = whole->forward(micro_batch(k), {}, positions);
    loss.backward();
    whole_loss += loss.item<double>();
  }

  const Schedule schedule = make_schedule(
      one.kind,
      {.ranks = pp->size(),
       .virtual_stages = one.virtual_stages,
       .micro_batches = kMicroBatches});
  std::vector<std::string> problems;
  const auto partition = partition_layers(
      estimate_layer_costs(
          {.num_layers = kLayers,
           .hidden_size = config.hidden_size,
           .intermediate_size = config.intermediate_size,
           .attention_width = 32,
           .key_value_width = 16,
           .vocab_size = config.vocab_size,
           .sequence_tokens = kSequenceTokens}),
      {.pp = pp->size(),
       .virtual_stages = one.virtual_stages,
       .pp_layers = std::nullopt},
      problems);
  ASSERT_THAT(problems, ::testing::IsEmpty());
  const auto queue = one.kind == ScheduleKind::kZeroBubble
                         ? std::make_shared<WeightGradientQueue>()
                         : nullptr;
  std::vector<std::shared_ptr<DecoderModel>> parts;
  std::vector<std::shared_ptr<PipelineStage>> stages;
  const int count = schedule.stages();
  for (int s = pp->rank(); s < count; s += pp->size()) {
    const auto part = part_of(
        config,
        {.layers = partition[static_cast<size_t>(s)],
         .is_first = s == 0,
         .is_last = s == count - 1},
        one.recompute,
        queue);
    parts.push_back(part);
    stages.push_back(std::make_shared<PipelineStage>(
        s,
        count,
        [part, positions](int k, const torch::Tensor& input) {
          return part->forward(micro_batch(k), input, positions);
        },
        queue));
  }
  PipelineExecutor executor(
      schedule,
      pp,
      stages,
      {.transfers =
           {.shape = {kRows * kSequenceTokens, config.hidden_size},
            .dtype = torch::kFloat,
            .device = torch::kCPU},
       .callbacks = {}});
  const torch::Tensor loss = executor.run();
  if (pp->rank() == pp->size() - 1) {
    EXPECT_NEAR(loss.item<double>(), whole_loss, 1e-5 * whole_loss);
  }
  if (one.is_tied && pp->size() > 1) {
    // The embedding of the first stage and the head of the last one, summed as
    // the trainer does; the stages between them add nothing.
    torch::Tensor sum = torch::zeros({config.vocab_size, config.hidden_size});
    torch::Tensor mine = sum;
    for (const auto& part : parts) {
      if (part->part().is_first || part->part().is_last)
        mine = part->named_parameters()["model.embed_tokens.weight"].grad();
    }
    sum.add_(mine);
    pp->all_reduce(sum)->wait();
    mine.copy_(sum);
  }

  const auto expected = whole->named_parameters();
  for (const auto& part : parts) {
    for (const auto& item : part->named_parameters()) {
      const torch::Tensor wanted = expected[item.key()].grad();
      EXPECT_GT(wanted.norm().item<double>(), 0) << item.key();
      EXPECT_LT(
          ((item.value().grad() - wanted).norm() / wanted.norm())
              .item<double>(),
          1e-5)
          << item.key() << " under " << schedule.name << " on rank "
          << pp->rank() << " of " << pp->size();
    }
  }
}

TEST(DecoderInStages, HasTheGradientsOfTheWholeModel) {
  for (int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](CommunicatorPtr pp) {
      for (bool is_tied : {false, true}) {
        for (Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          for (ScheduleKind kind :
               {ScheduleKind::kAfab,
                ScheduleKind::kOneFOneB,
                ScheduleKind::kZeroBubble})
            expect_gradients_of_the_whole_model(
                pp, {kind, 1, recompute, is_tied});
          // One rank would hold the tied matrix twice; it does not cut.
          if (pp->size() > 1)
            expect_gradients_of_the_whole_model(
                pp, {ScheduleKind::kInterleaved1F1B, 2, recompute, is_tied});
        }
      }
    });
  }
}

}  // namespace
}  // namespace brigade
