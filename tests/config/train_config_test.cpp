#include "brigade/config/train_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

// The smallest complete config: 4 layers, 4 heads, 2 kv heads.
json minimal() {
  return json::parse(R"({
    "model": {"config": {
      "architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "max_position_embeddings": 128}},
    "training": {"seq_length": 64},
    "dataset": {"name": "data/tokens"}})");
}

LoadedConfig load(
    const std::string& text,
    const std::vector<std::string>& overrides = {},
    int world_size = 1) {
  LoadOptions options{.path = "run.json", .world_size = world_size};
  for (const std::string& override : overrides)
    options.overrides.push_back({override});
  return parse_train_config(text, options);
}

std::vector<std::string> problems(
    const std::string& text,
    const std::vector<std::string>& overrides = {},
    int world_size = 1) {
  try {
    load(text, overrides, world_size);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.problems();
  }
  return {};
}

std::vector<std::string> problems_of(
    const std::vector<std::string>& overrides,
    int world_size = 1) {
  return problems(minimal().dump(), overrides, world_size);
}

json with(json file, const std::string& pointer, const json& value) {
  file[json::json_pointer(pointer)] = value;
  return file;
}

const ResolvedValue& value_of(const LoadedConfig& loaded, const char* key) {
  const auto found = std::find_if(
      loaded.values.begin(), loaded.values.end(), [&](const auto& value) {
        return value.key == key;
      });
  EXPECT_NE(found, loaded.values.end()) << key;
  return *found;
}

// picotron's template/base_config.json, as its repository has it.
constexpr const char* kPicotron = R"({
    "distributed": {
        "tp_size": 1,
        "cp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "pp_engine": "1f1b",
        "backend": "nccl",
        "use_cpu": false
    },
    "model": {
        "name": "HuggingFaceTB/SmolLM-360M-Instruct",
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "dtype": "bfloat16",
        "use_flash_attention": true,
        "use_fused_adam": true
    },
    "training": {
        "seed": 42,
        "learning_rate": 3e-4,
        "total_train_steps": 200,
        "seq_length": 1024,
        "micro_batch_size": 32,
        "gradient_accumulation_steps": 1,
        "num_samples": 400000,
        "max_tokens": null
    },
    "dataset": {
        "name": "roneneldan/TinyStories",
        "subset_name": null,
        "num_workers": 0,
        "num_proc": 1
    },
    "checkpoint": {
        "save_dir": "ckpt",
        "save_frequency": 300,
        "load_path": ""
    },
    "logging": {
        "use_wandb": false,
        "project_name": "picotron",
        "run_name": null
    },
    "environment": {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "FLASH_ATTEN": "1",
        "HF_TOKEN": null
    }
})";

TEST(TrainConfig, PicotronsTemplateNeedsUseCpuAlone) {
  const LoadedConfig loaded = load(kPicotron, {"distributed.use_cpu=true"});
  const TrainConfig& config = loaded.config;
  EXPECT_EQ(config.parallel_dims(), ParallelDims{});
  EXPECT_EQ(config.distributed.pp_engine, ScheduleKind::kOneFOneB);
  EXPECT_EQ(config.distributed.backend, Backend::kNccl);
  EXPECT_EQ(config.distributed.use_cpu, true);
  EXPECT_EQ(config.model.name, "HuggingFaceTB/SmolLM-360M-Instruct");
  EXPECT_EQ(config.model.num_hidden_layers, 16);
  EXPECT_EQ(config.model.dtype, ModelDtype::kBfloat16);
  EXPECT_FALSE(config.model.decoder.has_value());  // to be looked up
  EXPECT_EQ(config.training.lr.peak, 3e-4);
  EXPECT_EQ(config.training.micro_batch_size, 32);
  EXPECT_EQ(config.training.max_tokens, std::nullopt);
  EXPECT_EQ(config.checkpoint.save_dir, "ckpt");
  EXPECT_EQ(config.checkpoint.save_frequency, 300);
  EXPECT_EQ(config.logging.run_name, "run");
  EXPECT_EQ(config.environment.OMP_NUM_THREADS, "1");
}

TEST(TrainConfig, KeysThatMeanNothingAreNamedOnceWithTheReason) {
  const json file =
      with(json::parse(kPicotron), "/environment/HF_TOKEN", "hf_secret");
  const LoadedConfig loaded = load(file.dump(), {"distributed.use_cpu=true"});
  EXPECT_THAT(
      loaded.ignored,
      ElementsAre(
          StartsWith("/model/use_flash_attention: "),
          StartsWith("/model/use_fused_adam: "),
          StartsWith("/training/num_samples: "),
          StartsWith("/logging/project_name: "),
          StartsWith("/environment/TOKENIZERS_PARALLELISM: "),
          StartsWith("/environment/FLASH_ATTEN: "),
          StartsWith("/environment/HF_TOKEN: "),
          StartsWith("/distributed/backend: use_cpu is true")));
  EXPECT_THAT(load(minimal().dump()).ignored, IsEmpty());
}

TEST(TrainConfig, ARunThatAsksForGpusDoesNotTrainOnCpus) {
  const auto says = [](const char* key) {
    return ElementsAre(AllOf(
        StartsWith(std::string("[config] /distributed/") + key + ": "),
        HasSubstr("this build is for CPUs; build against a libtorch with CUDA"),
        HasSubstr("set /distributed/use_cpu to true to train on CPUs")));
  };
  EXPECT_THAT(
      problems_of({"distributed.backend=nccl"}), says("backend = \"nccl\""));
  for (const char* backend : {"", "gloo", "nccl"}) {
    EXPECT_THAT(
        problems_of(
            {std::string("distributed.backend=") + backend,
             "distributed.use_cpu=false"}),
        says("use_cpu = false"))
        << backend;
    EXPECT_THAT(
        problems_of(
            {std::string("distributed.backend=") + backend,
             "distributed.use_cpu=true"}),
        IsEmpty())
        << backend;
  }
  EXPECT_THAT(problems_of({"distributed.backend=gloo"}), IsEmpty());
}

TEST(TrainConfig, SaysWhyAMachineHasNoGpuToTrainOn) {
  LoadOptions options{.path = "run.json"};
  options.overrides.push_back({"distributed.use_cpu=false"});
  options.gpus.missing = "the driver is too old";
  EXPECT_THAT(
      [&] { parse_train_config(minimal().dump(), options); },
      ThrowsMessage<ConfigError>(HasSubstr(
          "/distributed/use_cpu = false: the driver is too old; or ")));
}

TEST(TrainConfig, ARunIsOnGpusIfThereAreAnyUnlessItSaysOtherwise) {
  const auto load_on_gpus = [](const std::vector<std::string>& overrides) {
    LoadOptions options{
        .path = "run.json", .gpus = {.count = 2, .missing = ""}};
    for (const std::string& text : overrides)
      options.overrides.push_back({text});
    return parse_train_config(minimal().dump(), options).config;
  };
  EXPECT_TRUE(load_on_gpus({}).trains_on_gpus());
  EXPECT_TRUE(load_on_gpus({"distributed.backend=nccl"}).trains_on_gpus());
  EXPECT_TRUE(load_on_gpus({"distributed.use_cpu=false"}).trains_on_gpus());
  EXPECT_FALSE(load_on_gpus({"distributed.backend=gloo"}).trains_on_gpus());
  EXPECT_FALSE(
      load_on_gpus({"distributed.backend=nccl", "distributed.use_cpu=true"})
          .trains_on_gpus());
  const auto problem = [&](const std::vector<std::string>& overrides) {
    return message_of<ConfigError>([&] { load_on_gpus(overrides); });
  };
  EXPECT_THAT(
      problem({"distributed.backend=gloo", "distributed.use_cpu=false"}),
      HasSubstr("/distributed/backend = \"gloo\" moves what is on CPUs"));
  EXPECT_THAT(
      problem({"model.kernels=cpu"}),
      HasSubstr("/model/kernels = \"cpu\" computes on CPUs"));
  EXPECT_THAT(
      problem({"model.kernels=cpu", "distributed.use_cpu=true"}), IsEmpty());
}

template <class Enum>
void expect_choices_round_trip(
    const char* pointer,
    Enum (*get)(const TrainConfig&)) {
  for (const auto& [choice, name] : kChoices<Enum>) {
    json file = with(minimal(), pointer, name);
    // Keys that some of them need too.
    if (std::string(name) == "wsd")
      file["training"]["decay_steps"] = 1;
    if (std::string(name) == "table")
      file["training"]["lr_table"] = {{{"step", 0}, {"factor", 1}}};
    file["distributed"]["use_cpu"] = true;
    if (std::string(pointer) == "/distributed/outer_wire")
      file["distributed"]["local_steps"] = 1;
    if (std::string(pointer) == "/model/init") {
      file["model"]["name"] = "some/model";
      file["model"].erase("config");
    }
    const TrainConfig config = load(file.dump()).config;
    EXPECT_EQ(get(config), choice) << pointer << " " << name;
    EXPECT_EQ(to_json(config).at(json::json_pointer(pointer)), name);
  }
}

TEST(TrainConfig, EachChoiceIsReadAndWrittenAsItsText) {
  using Config = const TrainConfig&;
  expect_choices_round_trip<ScheduleKind>(
      "/distributed/pp_engine",
      [](Config c) { return c.distributed.pp_engine; });
  expect_choices_round_trip<Backend>("/distributed/backend", [](Config c) {
    return c.distributed.backend.value();
  });
  expect_choices_round_trip<GradSyncAlgorithm>(
      "/distributed/grad_sync",
      [](Config c) { return c.distributed.grad_sync; });
  expect_choices_round_trip<GradWire>("/distributed/grad_wire", [](Config c) {
    return c.distributed.grad_wire;
  });
  expect_choices_round_trip<WireFormat>(
      "/distributed/outer_wire",
      [](Config c) { return c.distributed.outer.wire; });
  expect_choices_round_trip<HierarchyChoice>(
      "/distributed/hierarchical_reduction",
      [](Config c) { return c.distributed.hierarchical_reduction; });
  expect_choices_round_trip<BucketOrder>(
      "/distributed/bucket_order",
      [](Config c) { return c.distributed.bucket_order; });
  expect_choices_round_trip<ModelDtype>(
      "/model/dtype", [](Config c) { return c.model.dtype; });
  expect_choices_round_trip<WeightInit>(
      "/model/init", [](Config c) { return c.model.init; });
  expect_choices_round_trip<LrDecay>(
      "/training/lr_schedule", [](Config c) { return c.training.lr.decay; });
  expect_choices_round_trip<LrEnd>(
      "/training/lr_end", [](Config c) { return c.training.lr_end.value(); });
  expect_choices_round_trip<Recompute>("/training/recompute", [](Config c) {
    return c.training.recompute_of_stage(0);
  });
}

TEST(TrainConfig, AnEmptyBackendIsAbsent) {
  EXPECT_EQ(load(minimal().dump()).config.distributed.backend, std::nullopt);
  for (const json& value : {json(""), json()}) {
    const TrainConfig config =
        load(with(minimal(), "/distributed/backend", value).dump()).config;
    EXPECT_EQ(config.distributed.backend, std::nullopt);
    EXPECT_EQ(to_json(config)["distributed"]["backend"], "");
  }
  EXPECT_THAT(
      problems(with(minimal(), "/distributed/backend", "glo").dump()),
      ElementsAre(HasSubstr("expected text, one of: , gloo, nccl, mpi")));
}

TEST(TrainConfig, SecretsAreNeitherPrintedNorSaved) {
  const json file = with(minimal(), "/environment/HF_TOKEN", "hf_secret");
  const LoadedConfig loaded = load(file.dump());
  EXPECT_THAT(describe_values(loaded), Not(HasSubstr("hf_secret")));
  EXPECT_THAT(to_json(loaded.config).dump(), Not(HasSubstr("hf_secret")));
  EXPECT_THAT(
      problems(with(minimal(), "/environment/HF_TOKEN", {1, 2}).dump()),
      ElementsAre(AllOf(HasSubstr("HF_TOKEN"), Not(HasSubstr("[1,2]")))));
}

TEST(TrainConfig, AbsentKeysMeanWhatPicotronDoes) {
  const TrainConfig config = load(minimal().dump()).config;
  EXPECT_EQ(config.training.optimizer.adamw.beta1, 0.9);
  EXPECT_EQ(config.training.optimizer.adamw.beta2, 0.999);
  EXPECT_EQ(config.training.optimizer.adamw.eps, 1e-8);
  EXPECT_EQ(config.training.weight_decay, 0.01);
  EXPECT_EQ(config.training.lr.decay, LrDecay::kConstant);
  EXPECT_EQ(config.training.grad_clip, 0);
  EXPECT_FALSE(config.dataset.shuffle);
  EXPECT_EQ(config.logging.run_dir, "runs/run");
  EXPECT_EQ(config.checkpoint.save_dir, "runs/run/checkpoints");
}

TEST(TrainConfig, ARunEndsBeforeItExceedsMaxTokens) {
  // The last step of a run from the beginning, and of one with 10 steps and
  // 7000 tokens done.
  using Steps = std::pair<int64_t, int64_t>;
  const auto last = [](const char* tokens) {
    const TrainConfig config =
        load(
            minimal().dump(),
            {"training.seq_length=64",
             "training.micro_batch_size=2",
             "training.gradient_accumulation_steps=3",
             std::string("training.max_tokens=") + tokens},
            2)
            .config;
    EXPECT_EQ(tokens_per_step(config), 768);
    return Steps(last_step(config), last_step(config, 10, 7000));
  };
  EXPECT_EQ(last("null"), Steps(200, 200));
  EXPECT_EQ(last("768"), Steps(1, 10));
  EXPECT_EQ(last("7679"), Steps(9, 10));
  EXPECT_EQ(last("7768"), Steps(10, 11));
  EXPECT_EQ(last("999999"), Steps(200, 200));
}

TEST(TrainConfig, TheModelsSizesCanBeOverriddenAsInPicotron) {
  const json file = with(
      with(minimal(), "/model/num_hidden_layers", 2),
      "/model/num_attention_heads",
      8);
  const DecoderConfig decoder = load(file.dump()).config.model.decoder.value();
  EXPECT_EQ(decoder.num_hidden_layers, 2);
  EXPECT_EQ(decoder.num_attention_heads, 8);
  EXPECT_EQ(decoder.num_key_value_heads, 2);
  EXPECT_EQ(decoder.head_dim, 64 / 8);
}

// ---- where values come from

TEST(TrainConfig, TheCommandLineWinsOverTheFileAndTheOriginIsKnown) {
  const auto loaded = load(
      with(minimal(), "/training/seed", 7).dump(),
      {"training.learning_rate=1e-3", "training.learning_rate=0.5"});
  EXPECT_EQ(loaded.config.training.seed, 7);
  EXPECT_EQ(loaded.config.training.lr.peak, 0.5);
  EXPECT_EQ(value_of(loaded, "training.seed").origin, ValueOrigin::kFile);
  EXPECT_EQ(
      value_of(loaded, "training.learning_rate").origin,
      ValueOrigin::kCommandLine);
  EXPECT_EQ(
      value_of(loaded, "training.grad_clip").origin, ValueOrigin::kDefault);
  const std::string text = describe_values(loaded);
  for (const char* line :
       {"training.learning_rate ",
        "# command line",
        "# file",
        "# default",
        "# default: runs/<logging.run_name>"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(TrainConfig, OverridesHaveTheTypeOfTheirKey) {
  const TrainConfig config =
      load(
          minimal().dump(),
          {"logging.run_name=2024",
           "logging.run_dir=\"a b\"",
           "distributed.use_cpu=true",
           "training.total_train_steps=1e3",
           "training.seed=1e18",
           "training.max_tokens=null",
           "training.recompute=selective",
           "checkpoint.load_path=",
           "dataset.name=null",
           R"(dataset.mixture=[{"name":"a","weight":3},{"name":"b"}])"})
          .config;
  EXPECT_EQ(config.logging.run_name, "2024");
  EXPECT_EQ(config.logging.run_dir, "a b");
  EXPECT_EQ(config.distributed.use_cpu, true);
  EXPECT_EQ(config.training.total_train_steps, 1000);
  EXPECT_EQ(config.training.seed, 1'000'000'000'000'000'000);
  EXPECT_EQ(config.training.max_tokens, std::nullopt);
  EXPECT_THAT(config.training.recompute, ElementsAre(Recompute::kSelective));
  EXPECT_EQ(config.checkpoint.load_path, "");
  EXPECT_THAT(
      config.dataset.mixture,
      ElementsAre(MixturePart{"a", 3}, MixturePart{"b", 1}));
}

TEST(TrainConfig, AnInlineModelCanBeChangedKeyByKey) {
  const auto loaded =
      load(minimal().dump(), {"model.config.num_hidden_layers=3"});
  EXPECT_EQ(loaded.config.model.decoder->num_hidden_layers, 3);
  // A key that only configs of another architecture have.
  EXPECT_EQ(
      load(minimal().dump(), {"model.config.rope_local_base_freq=100"})
          .config.model.config.at("rope_local_base_freq"),
      100);
  EXPECT_THAT(
      problems_of({"model.config.hiden_size=32"}),
      ElementsAre(HasSubstr(
          "/model/config/hiden_size = 32 (command line): unknown key; the "
          "nearest valid one is /model/config/hidden_size")));
}

// ---- problems and their messages

struct BadOverride {
  const char* override;
  const char* expected;
};

TEST(TrainConfig, EachBadOverrideSaysPlaceValueAndRemedy) {
  const BadOverride cases[] = {
      {"distributed.dpsize=2",
       "[config] /distributed/dpsize = 2 (command line): unknown key; the "
       "nearest valid one is /distributed/dp_size"},
      {"training.batch_size=2", "/training/micro_batch_size"},
      {"training.lr=2", "/training/learning_rate"},
      {"model.seq_length=8", "/training/seq_length"},
      {"distribted.tp_size=2", "/distributed/tp_size"},
      {"tp_size=2", "/distributed/tp_size"},
      {"trainning.sed=2", "the nearest valid name is /training"},
      {"training.seed", "expected group.key=value"},
      {"training=3", "'training=3' (command line): expected group.key=value"},
      {"=3", "'=3' (command line): expected group.key=value"},
      {"training.=3", "expected group.key=value"},
      {"a/b.c=1", "/a~1b/c = 1 (command line): unknown group"},
      {"training..seed=3", "/training//seed = 3 (command line): unknown key"},
      {"training.total_train_steps=99999999999999999999",
       "/training/total_train_steps = 99999999999999999999 (command line)"},
      {"logging.run_dir=", "/logging/run_dir = \"\" (command line): a folder"},
      {"logging.run_name=", "/logging/run_name = \"\" (command line): a run"},
      {"logging.run_dir=\"a\\u0000\"", "must not hold a NUL byte"},
      {"training.seed=abc",
       "/training/seed = \"abc\" (command line): expected an integer >= 0"},
      {"training.seed=1.5", "1.5 (command line): expected an integer >= 0"},
      {"training.seed=-1", "-1 (command line): expected an integer >= 0"},
      {"training.seed=18446744073709551615",
       "expected an integer >= 0, at most 9223372036854775807"},
      {"training.seed=1e19",
       "expected an integer >= 0, at most 9223372036854775807"},
      {"training.seed=null", "null (command line): expected an integer"},
      {"training.learning_rate=fast", "expected a number >= 0"},
      {"training.adam_beta1=1", "expected a number >= 0 and < 1"},
      {"training.adam_eps=0", "expected a number > 0"},
      {"distributed.bucket_cap_mb=0", "expected a number > 0"},
      {"distributed.tp_size=0", "expected an integer >= 1"},
      {"distributed.tp_size=4294967297", "<= 2147483647"},
      {"distributed.use_cpu=yes", "expected true or false, or null"},
      {"distributed.sequence_parallel=1", "expected true or false"},
      {"distributed.grad_sync=bucket", "one of: bucketed, per_param"},
      {"distributed.grad_wire=bfloat16",
       "one of: fp32, bf16, fp16, int8, powersgd"},
      {"distributed.outer_wire=fp16", "one of: fp32, bf16, int8, int4"},
      {"distributed.powersgd_rank=0", "expected an integer >= 1"},
      {"distributed.local_steps=-1", "expected an integer >= 0"},
      {"distributed.pp_engine=gpipe",
       "one of: 1f1b, afab, interleaved_1f1b, zero_bubble"},
      {"distributed.pp_layers=[1,\"2\"]", "expected a list of integers >= 0"},
      {"model.dtype=float16", "one of: float32, bfloat16"},
      {"model.kernels=cuda", "one of: auto, cpu, aten"},
      {"training.recompute=[]", "one of: none, selective, full"},
      {"dataset.eval_fraction=1", "expected a number > 0 and < 1"},
      {"dataset.mixture=[{\"path\":\"a\"}]", "\"weight\": a number > 0"},
      {"model.config=5", "expected an object, or null"},
      {"environment.OMP_NUM_THREADS=all", "expected a number of threads >= 1"},
      {"training.max_tokens=1",
       "/training/max_tokens = 1 is less than the 64 tokens of one step"},
      {"training.lr_end=never",
       "one of: after_last_step, at_total_train_steps"},
      {"logging.trace_steps=[2, 201]",
       "trace_steps has step 201, but /training/total_train_steps is 200"},
      {"training.min_learning_rate=1", "is above /training/learning_rate"},
      {"checkpoint.keep_every=3",
       "/checkpoint/keep_every = 3 keeps checkpoints beside those of "
       "/checkpoint/keep_last, which is 0 and keeps all"},
      {"model.config=null", "neither /model/config nor /model/name"},
      {"model.name=gpt2", "/model/name = \"gpt2\" and /model/config are both"},
      {"model.init=pretrained", "needs /model/name"},
      {"dataset.name=null", "/dataset/name is not given"},
      {"dataset.mixture=[{\"name\":\"a\"}]", "are both given"},
      {"dataset.prepend_bos=true",
       "/dataset/prepend_bos = true has no meaning without /dataset/text"},
      {"dataset.text_key=body", "has no meaning without /dataset/text"},
      {"dataset.tokenizer=/nowhere",
       "/dataset/tokenizer = \"/nowhere\": there is no such file or folder"},
      {"model.config.vocab_size=-1", "[config] /model/config/vocab_size"},
      {"model.config.vocab_size=null",
       "/model/config/vocab_size is not given, and the dataset 'data/tokens' "
       "does not say it"},
      {"model.config.architectures=[\"GPT2LMHeadModel\"]",
       "[config] /model/config/architectures: [\"GPT2LMHeadModel\"] is not"},
      {"logging.run_dir=runs/\xff", "the text is not valid UTF-8"},
      {"dataset.name=\xc3", "the text is not valid UTF-8"},
  };
  for (const BadOverride& bad : cases) {
    EXPECT_THAT(
        problems_of({bad.override}), ElementsAre(HasSubstr(bad.expected)))
        << bad.override;
  }
}

TEST(TrainConfig, AllProblemsAreReportedAtOnceEachWithItsPlace) {
  json file = minimal();
  file["training"]["sead"] = 3;
  file["training"]["grad_clip"] = "none";
  file["optimizer"] = json::object();
  file["distributed"] = 4;
  file["dataset"].erase("name");
  const auto found = problems(file.dump(), {"distributed.dp_siz=2"});
  EXPECT_THAT(
      found,
      ::testing::UnorderedElementsAre(
          HasSubstr("/training/sead = 3 (run.json): unknown key; the nearest "
                    "valid one is /training/seed"),
          HasSubstr("/training/grad_clip = \"none\" (run.json): expected a "
                    "number >= 0"),
          HasSubstr("/optimizer = {} (run.json): unknown group"),
          HasSubstr("/distributed = 4 (run.json): expected an object"),
          HasSubstr("/dataset/name is not given"),
          HasSubstr("/distributed/dp_siz = 2 (command line)")));
  EXPECT_THAT(found, Each(StartsWith("[config] ")));
}

// Each case has one problem; its consequences are not reported too.
TEST(TrainConfig, AProblemIsNotReportedASecondTimeByWhatFollowsFromIt) {
  const std::vector<std::vector<std::string>> cases = {
      {"dataset.name=null", "dataset.mixture=5"},
      {"dataset.mixture=[{\"name\":\"a\"}]", "dataset.name=[1]"},
      {"training.max_tokens=1", "training.seq_length=none"},
      {"training.min_learning_rate=1", "training.learning_rate=fast"},
      {"logging.trace_steps=[300]", "training.total_train_steps=many"},
      {"distributed.backend=nccl", "distributed.use_cpu=maybe"},
      {"model.config.num_attention_heads=0"},
      {"model.config.num_key_value_heads=0"},
  };
  for (const auto& overrides : cases)
    EXPECT_THAT(problems_of(overrides), SizeIs(1)) << overrides[0];
}

TEST(TrainConfig, WarnsOfUnlikelyValues) {
  const auto warnings = [](const std::vector<std::string>& overrides) {
    return find_warnings(load(minimal().dump(), overrides, 2));
  };
  EXPECT_THAT(warnings({}), IsEmpty());
  EXPECT_THAT(warnings({"training.seq_length=128"}), IsEmpty());
  EXPECT_THAT(
      warnings({"training.seq_length=130"}),
      ElementsAre(
          HasSubstr("/training/seq_length = 130 is more than the model's "
                    "max_position_embeddings = 128")));
  EXPECT_THAT(warnings({"training.warmup_steps=200"}), IsEmpty());
  EXPECT_THAT(
      warnings({"training.warmup_steps=201"}),
      ElementsAre(HasSubstr("/training/warmup_steps = 201 is more than the "
                            "run's 200 steps")));
  // The model has 0.7 MiB of gradients; the default capacity of 25 MiB is not
  // the user's choice.
  const std::string local = "distributed.local_steps=60";
  EXPECT_THAT(
      warnings({local}),
      ElementsAre(HasSubstr("the run's steps, 200, is no multiple of "
                            "/distributed/local_steps = 60: what the groups "
                            "learn in the last 20 steps")));
  EXPECT_THAT(
      warnings({local, "distributed.local_warmup_steps=20"}), IsEmpty());
  EXPECT_THAT(
      warnings({local, "distributed.local_warmup_steps=30"}),
      ElementsAre(AllOf(
          HasSubstr(
              "less /distributed/local_warmup_steps = 30, is no multiple"),
          HasSubstr("the last 50 steps"))));
  // The last round has to be merged too.
  const std::string delay = "distributed.outer_delay=4";
  EXPECT_THAT(
      warnings({local, delay, "training.total_train_steps=184"}), IsEmpty());
  EXPECT_THAT(
      warnings({local, delay, "training.total_train_steps=180"}),
      ElementsAre(AllOf(
          HasSubstr("180 less /distributed/outer_delay = 4, is no multiple"),
          HasSubstr("the last 60 steps"))));
  EXPECT_THAT(
      warnings({local, "distributed.local_warmup_steps=200"}),
      ElementsAre(EndsWith("the whole run is a warm-up")));
  EXPECT_THAT(
      warnings(
          {local,
           "distributed.local_warmup_steps=210",
           "distributed.local_warmup_interval=30"}),
      ElementsAre(HasSubstr("warm-up, and what the groups learn in its last 20 "
                            "steps does not reach")));
  // Every run writes these keys; only a user's choice gives a warning.
  for (const std::string decay : {"constant", "table", "cosine"}) {
    std::vector<std::string> chosen = {"training.lr_schedule=" + decay};
    if (decay == "table")
      chosen.emplace_back(R"(training.lr_table=[{"step":0,"factor":1}])");
    chosen.emplace_back("training.lr_end=after_last_step");
    EXPECT_THAT(warnings(chosen), IsEmpty()) << decay;
    chosen.back() = "training.lr_end=at_total_train_steps";
    if (decay == "cosine") {
      EXPECT_THAT(warnings(chosen), IsEmpty());
      continue;
    }
    EXPECT_THAT(
        warnings(chosen),
        ElementsAre(AllOf(
            HasSubstr("/training/lr_end = \"at_total_train_steps\" has no "
                      "effect"),
            HasSubstr("\"" + decay + "\", which"))));
  }
  EXPECT_THAT(warnings({"distributed.bucket_cap_mb=0.5"}), IsEmpty());
  EXPECT_THAT(
      warnings({"distributed.bucket_cap_mb=2"}),
      ElementsAre(HasSubstr(
          "/distributed/bucket_cap_mb = 2 is more than all gradients")));
  EXPECT_THAT(
      warnings(
          {"distributed.bucket_cap_mb=2", "distributed.grad_sync=per_param"}),
      IsEmpty());
}

TEST(TrainConfig, AWireDtypeNeedsBuckets) {
  EXPECT_THAT(
      problems_of(
          {"distributed.grad_wire=bf16", "distributed.grad_sync=per_param"}),
      Contains(HasSubstr(
          "/distributed/grad_wire = \"bf16\" with /distributed/grad_sync = "
          "\"per_param\"")));
}

TEST(TrainConfig, GradientsAreComputedTwiceInBucketsOnCpus) {
  const std::string checks = "training.check_gradients_every=10";
  EXPECT_THAT(
      problems_of({checks, "distributed.grad_sync=per_param"}),
      Contains(HasSubstr(
          "/training/check_gradients_every = 10 with /distributed/grad_sync = "
          "per_param")));
}

TEST(TrainConfig, AWireWithErrorFeedbackReducesWholeGradients) {
  for (const std::string wire : {"int8", "powersgd"})
    EXPECT_THAT(
        problems_of(
            {"distributed.grad_wire=" + wire, "distributed.zero_stage=1"}),
        Contains(HasSubstr(
            "/distributed/grad_wire = \"" + wire +
            "\" with /distributed/zero_stage = 1")));
}

// The frequencies then depend on the length of the sequence, which neither a
// part of it nor a padded answer has.
TEST(TrainConfig, DynamicRotaryFrequenciesNeedWholeSequences) {
  const std::string dynamic =
      R"(model.config.rope_scaling={"rope_type":"dynamic","factor":2})";
  const auto refuses = [&](const std::string& seq_length,
                           const std::string& key,
                           int ranks) {
    const auto found =
        problems_of({dynamic, "training.seq_length=" + seq_length, key}, ranks);
    return std::any_of(found.begin(), found.end(), [](const auto& text) {
      return text.find("rope_scaling \"dynamic\" depends") != std::string::npos;
    });
  };
  for (const auto& [key, ranks] :
       {std::pair("distributed.cp_size=2", 2),
        std::pair("training.loss=dpo", 1)}) {
    EXPECT_FALSE(refuses("128", key, ranks)) << key;
    EXPECT_TRUE(refuses("192", key, ranks)) << key;
  }
}

TEST(TrainConfig, WiresThatAreRoundedOnTheHostAreRefusedOnGpus) {
  const auto problem = [](const std::vector<std::string>& overrides) {
    LoadOptions options{
        .path = "run.json", .gpus = {.count = 2, .missing = ""}};
    for (const std::string& text : overrides)
      options.overrides.push_back({text});
    return message_of<ConfigError>(
        [&] { parse_train_config(minimal().dump(), options); });
  };
  EXPECT_THAT(
      problem({"distributed.grad_wire=int8"}),
      HasSubstr("grad_wire = \"int8\" on GPUs"));
  EXPECT_THAT(
      problem({"distributed.grad_wire=powersgd"}),
      HasSubstr("grad_wire = \"powersgd\" on GPUs"));
  EXPECT_THAT(
      problem({"distributed.local_steps=4", "distributed.outer_wire=int8"}),
      HasSubstr("outer_wire = \"int8\" on GPUs"));
  EXPECT_EQ(problem({"distributed.grad_wire=bf16"}), "");
}

TEST(TrainConfig, AFileThatIsNoObjectIsOneProblem) {
  EXPECT_THAT(
      [&] { parse_train_config("[1]", {}); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("expected an object with the groups"),
          ::testing::Not(HasSubstr("/dataset/name")))));
}

TEST(TrainConfig, ARankOfPowerSgdNeedsItsWire) {
  EXPECT_THAT(
      problems_of({"distributed.powersgd_rank=2"}),
      Contains(HasSubstr("/distributed/powersgd_rank = 2 has no meaning with "
                         "/distributed/grad_wire = \"fp32\"")));
  EXPECT_THAT(
      problems_of(
          {"distributed.powersgd_rank=2", "distributed.grad_wire=powersgd"}),
      IsEmpty());
}

TEST(TrainConfig, PackedDocumentsDoNotSeeOneAnother) {
  const std::string packing = "dataset.packing=best_fit";
  EXPECT_THAT(problems_of({packing}), IsEmpty());
  EXPECT_THAT(
      problems_of({packing, "dataset.reset_attention=true"}), IsEmpty());
  EXPECT_THAT(
      problems_of({packing, "dataset.reset_attention=false"}),
      ElementsAre(HasSubstr("/dataset/reset_attention = false with "
                            "/dataset/packing = \"best_fit\"")));
  EXPECT_TRUE(load(minimal().dump(), {packing}).config.dataset.reset_attention);
  EXPECT_FALSE(load(minimal().dump()).config.dataset.reset_attention);
}

TEST(TrainConfig, PackingRefusesWhatItCannotHonour) {
  const std::string packing = "dataset.packing=best_fit";
  EXPECT_THAT(
      problems_of({packing, "dataset.document_epochs=true"}),
      ElementsAre(HasSubstr("/dataset/document_epochs = true has no meaning "
                            "with /dataset/packing = \"best_fit\"")));
  const std::string cut = "dataset.long_documents=cut";
  EXPECT_THAT(problems_of({packing, cut}), IsEmpty());
  EXPECT_THAT(
      problems_of({cut}),
      ElementsAre(HasSubstr("/dataset/long_documents = \"cut\" has no meaning "
                            "with /dataset/packing = \"none\"")));
}

TEST(TrainConfig, LocalStepsRefuseWhatTheyCannotHonour) {
  const std::string local = "distributed.local_steps=6";
  EXPECT_THAT(
      problems_of({"distributed.outer_wire=int8"}),
      Contains(HasSubstr("no meaning with /distributed/local_steps = 0")));
  EXPECT_THAT(
      problems_of({"distributed.local_warmup_steps=3"}),
      Contains(HasSubstr("no meaning with /distributed/local_steps = 0")));
  const std::string warmup = "distributed.local_warmup_steps=3";
  EXPECT_THAT(problems_of({local, warmup}), IsEmpty());
  EXPECT_THAT(
      problems_of({local, warmup, "distributed.grad_sync=per_param"}),
      Contains(HasSubstr("local_warmup_steps = 3 with /distributed/grad_sync = "
                         "\"per_param\"")));
  const std::string interval = "distributed.local_warmup_interval=3";
  EXPECT_THAT(
      problems_of({local, warmup, interval, "distributed.grad_sync=per_param"}),
      IsEmpty());
  EXPECT_THAT(
      problems_of({local, interval}),
      Contains(HasSubstr("local_warmup_interval = 3 has no meaning with "
                         "/distributed/local_warmup_steps = 0")));
  EXPECT_THAT(
      problems_of({local, warmup, "distributed.local_warmup_interval=2"}),
      Contains(HasSubstr("local_warmup_interval = 2 does not divide")));
  EXPECT_THAT(
      problems_of({local, "distributed.zero_stage=1"}),
      Contains(HasSubstr(
          "/distributed/local_steps = 6 with /distributed/zero_stage = 1")));
  EXPECT_THAT(
      problems_of({local, "distributed.local_groups=3"}),
      Contains(HasSubstr("/distributed/local_groups = 3 does not divide")));
  EXPECT_THAT(
      problems_of({local, "distributed.outer_fragments=7"}),
      Contains(HasSubstr("/distributed/outer_fragments = 7 is more than")));
  EXPECT_THAT(
      problems_of(
          {local,
           "distributed.outer_fragments=2",
           "distributed.outer_delay=3"}),
      Contains(HasSubstr("give at most 2")));
  EXPECT_THAT(problems_of({local, "distributed.outer_delay=5"}), IsEmpty());
}

TEST(TrainConfig, EachDpRankIsAGroupUnlessTheirNumberIsGiven) {
  DistributedConfig distributed;
  distributed.dims.dp = 6;
  distributed.local_groups = 2;
  EXPECT_EQ(distributed.replica_groups(), 1);
  distributed.rounds.local_steps = 5;
  EXPECT_EQ(distributed.replica_groups(), 2);
  distributed.local_groups = 0;
  EXPECT_EQ(distributed.replica_groups(), 6);
}

TEST(TrainConfig, OnlyTheCommandLinesTextTakesTheFilesDatasetsPlace) {
  const std::string text = "dataset.text=" + std::string(__FILE__);
  const json named = with(minimal(), "/dataset/name", "data/tokens");
  EXPECT_THAT(problems(named.dump(), {text}), IsEmpty());
  const auto refused = ElementsAre(AllOf(
      HasSubstr("/dataset/name = \"data/tokens\""),
      HasSubstr("/dataset/text is given too; leave one out")));
  EXPECT_THAT(
      problems(with(named, "/dataset/text", {__FILE__}).dump(), {}), refused);
  EXPECT_THAT(
      problems(minimal().dump(), {text, "dataset.name=data/tokens"}), refused);
}

TEST(TrainConfig, EpochsOfDocumentsHaveNoBlocksOfWindows) {
  const std::string block = "dataset.shuffle_block=16";
  const std::string documents = "dataset.document_epochs=true";
  EXPECT_THAT(
      problems_of({"dataset.shuffle=true", block, documents}),
      ElementsAre(HasSubstr("/dataset/shuffle_block = 16 has no meaning with "
                            "/dataset/document_epochs = true")));
  EXPECT_THAT(problems_of({"dataset.shuffle=true", block}), IsEmpty());
  EXPECT_THAT(problems_of({"dataset.shuffle=true", documents}), IsEmpty());
}

TEST(TrainConfig, AMixtureWhosePartsAreEvaluatedNamesEachOnce) {
  const std::string mixture =
      R"(dataset.mixture=[{"name":"a"},{"name":"b"},{"name":"a","weight":3}])";
  const std::string parts = "dataset.eval_parts=true";
  EXPECT_THAT(
      problems_of({"dataset.name=", mixture, parts, "training.eval_every=5"}),
      ElementsAre(HasSubstr("/dataset/mixture names \"a\" twice")));
  EXPECT_THAT(problems_of({"dataset.name=", mixture, parts}), IsEmpty());
  EXPECT_THAT(
      problems_of({"dataset.name=", mixture, "training.eval_every=5"}),
      IsEmpty());
}

// As config.json of a run may say, which checkpoint.load_path continues.
TEST(TrainConfig, ARunWithAFolderNeedsNoName) {
  EXPECT_THAT(
      problems_of({"logging.run_name=", "logging.run_dir=runs/"}), IsEmpty());
}

TEST(TrainConfig, AKeyThatStandsTwiceIsFoundAtItsPlace) {
  EXPECT_THAT(
      problems(R"({"training": {"seed": 1, "seed": 2},
                   "dataset": {"name": "d", "mixture":
                     [{"name": "a"}, {"name": "b", "name": "c"}]},
                   "model": {"name": "gpt2"},
                   "model": {"name": "gpt2"}})"),
      AllOf(
          Contains(
              HasSubstr("run.json:1:26: not valid JSON, at /training/seed: "
                        "this key appears twice")),
          Contains(HasSubstr("run.json:3:52: not valid JSON, at "
                             "/dataset/mixture/1/name: this key")),
          Contains(HasSubstr(
              "run.json:5:20: not valid JSON, at /model: this key"))));
  // The same name in two objects is no duplicate.
  EXPECT_THAT(
      problems(with(minimal(), "/logging/run_name", "data").dump()), IsEmpty());
}

struct BadSyntax {
  const char* text;
  const char* expected;
};

TEST(TrainConfig, SyntaxErrorsHaveLineAndColumn) {
  const BadSyntax cases[] = {
      {"", "run.json:1:1: "},
      {"{\n  \"a\": 1,\n}",
       "[config] run.json:3:1: not valid JSON, at /a: expected a key in double "
       "quotes after the comma"},
      {"{\n \"a\": tru\n}",
       "run.json:2:7: not valid JSON, at /a: expected a value"},
      {"{} x", "run.json:1:4: "},
      {"{\"a\": 1e999}", "run.json"},
      {"{\"a\": \"\xff\"}", "run.json:1:"},
      {"[1, 2", "run.json:1:"},
  };
  for (const BadSyntax& bad : cases) {
    EXPECT_THAT(problems(bad.text), ElementsAre(HasSubstr(bad.expected)))
        << bad.text;
  }
  EXPECT_THAT(
      problems("[]"),
      Contains(HasSubstr("/ = [] (run.json): expected an object")));
}

TEST(TrainConfig, DeepNestingIsAnErrorLikeAnyOther) {
  const std::string deep(100000, '[');
  EXPECT_THAT(problems(deep), SizeIs(1));
  EXPECT_THAT(
      problems("{\"training\": " + deep + std::string(100000, ']') + "}"),
      ElementsAre(HasSubstr(": nested deeper than 64")));
  EXPECT_THAT(
      problems_of({"model.config=" + deep + std::string(100000, ']')}),
      SizeIs(1));
}

TEST(TrainConfig, AMissingFileIsAConfigErrorThatNamesIt) {
  EXPECT_THAT(
      [&] { load_train_config({.path = "no/such/run.json"}); },
      ThrowsMessage<ConfigError>(HasSubstr("'no/such/run.json'")));
}

// ---- layouts

TEST(TrainConfig, AbsentDpSizeIsWhatTheWorldLeaves) {
  const auto dims = [](const std::vector<std::string>& overrides, int world) {
    return load(minimal().dump(), overrides, world).config.parallel_dims();
  };
  EXPECT_EQ(dims({}, 1), (ParallelDims{}));
  EXPECT_EQ(dims({}, 6), (ParallelDims{.dp = 6}));
  EXPECT_EQ(
      dims({"distributed.tp_size=2", "distributed.cp_size=2"}, 8),
      (ParallelDims{.dp = 2, .tp = 2, .cp = 2}));
  EXPECT_EQ(dims({"distributed.pp_size=4"}, 4), (ParallelDims{.pp = 4}));
  EXPECT_EQ(dims({"distributed.dp_size=2"}, 2), (ParallelDims{.dp = 2}));
}

TEST(TrainConfig, AProductThatIsNotTheWorldShowsTheSumAndLayoutsThatFit) {
  EXPECT_THAT(
      problems_of(
          {"distributed.dp_size=2",
           "distributed.pp_size=2",
           "distributed.tp_size=3"},
          8),
      ElementsAre(AllOf(
          HasSubstr("[parallel_dims] dp 2 * pp 2 * cp 1 * tp 3 = 12, but world "
                    "size is 8"),
          HasSubstr("--nproc 12"),
          HasSubstr("dp 2 * pp 2 * cp 1 * tp 2"))));
  EXPECT_THAT(
      problems_of({"distributed.tp_size=3"}, 8),
      ElementsAre(HasSubstr("tp 3 = 3, but world size is 8")));
  EXPECT_THAT(
      problems_of(
          {"distributed.tp_size=2147483647", "distributed.cp_size=2147483647"},
          8),
      SizeIs(1));
}

TEST(TrainConfig, AModelThatDoesNotFitShowsTheNearestLayoutsThatDo) {
  // 4 heads on 3 ranks; with 6 ranks tp may be 1 or 2.
  const auto found = problems_of({"distributed.tp_size=3"}, 6);
  EXPECT_THAT(
      found,
      AllOf(
          Contains(HasSubstr("num_attention_heads = 4 cannot be cut for tp 3; "
                             "nearest tp sizes that fit this model: 2, 4")),
          Contains(HasSubstr("num_key_value_heads = 2 cannot be cut for tp 3")),
          Contains(HasSubstr("nearest layouts of 6 ranks that fit: dp 3 * pp 1 "
                             "* cp 1 * tp 2"))));
  EXPECT_THAT(
      problems_of({"distributed.pp_size=8"}, 8),
      ElementsAre(AllOf(
          HasSubstr("8 stages"),
          HasSubstr("a model of 4 layers"),
          HasSubstr("that fit: dp 2 * pp 4 * cp 1 * tp 1"))));
  // A layout that ZeRO would then refuse is none.
  EXPECT_THAT(
      problems_of({"distributed.tp_size=3", "distributed.zero_stage=3"}, 6),
      Not(Contains(HasSubstr("pp 2"))));
  EXPECT_THAT(
      problems_of({"distributed.pp_size=8", "distributed.pp_layers=[3,1]"}, 8),
      Contains(HasSubstr("tp 1 with pp_layers=null")));
  EXPECT_THAT(
      problems_of({"distributed.cp_size=3"}, 3),
      ElementsAre(AllOf(
          HasSubstr("64 tokens do not split"),
          HasSubstr("nearest: 60 or 66"),
          HasSubstr("that fit: dp 3 * pp 1 * cp 1 * tp 1"))));
  EXPECT_THAT(
      problems_of(
          {"distributed.tp_size=2", "model.config.intermediate_size=9"}, 2),
      ElementsAre(AllOf(
          HasSubstr("intermediate_size = 9 cannot be cut for tp 2"),
          HasSubstr("that fit: dp 2"))));
  // Any vocabulary fits: it is padded.
  EXPECT_THAT(
      problems_of({"distributed.tp_size=4", "model.config.vocab_size=257"}, 4),
      IsEmpty());
  EXPECT_THAT(
      problems_of(
          {"distributed.tp_size=4",
           "distributed.sequence_parallel=true",
           "training.seq_length=66"},
          4),
      ElementsAre(AllOf(
          HasSubstr("1 x 66 tokens of a rank"),
          HasSubstr("that fit: dp 2 * pp 1 * cp 1 * tp 2"))));
  EXPECT_THAT(
      problems_of(
          {"distributed.tp_size=4",
           "distributed.sequence_parallel=true",
           "training.micro_batch_size=2",
           "training.seq_length=66"},
          4),
      IsEmpty());
  // kv heads fewer than ranks are replicated.
  EXPECT_THAT(problems_of({"distributed.tp_size=4"}, 4), IsEmpty());
}

TEST(TrainConfig, WhatNoLayoutMendsIsReportedWithoutLayouts) {
  EXPECT_THAT(
      problems_of({"distributed.pp_size=2", "training.router_z_loss=0.1"}, 2),
      ElementsAre("[config] /training/router_z_loss = 0.1: this model has no "
                  "experts; leave it out"));
  EXPECT_THAT(
      problems_of(
          {"distributed.local_steps=8", "distributed.outer_fragments=5"}, 2),
      ElementsAre(
          EndsWith("outer_fragments = 5 is more than the model's 4 layers")));
  EXPECT_THAT(
      problems_of({"training.gradient_accumulation_steps=2147483648"}, 2),
      ElementsAre(EndsWith("too many")));
  // Beside a layout that does not fit, the layouts that do are named.
  EXPECT_THAT(
      problems_of({"distributed.pp_size=8", "training.router_z_loss=0.1"}, 8),
      ElementsAre(
          EndsWith("leave it out"),
          HasSubstr("that fit: dp 2 * pp 4 * cp 1 * tp 1")));
}

TEST(TrainConfig, TokensOfAMicroBatchAndOfAStepAreCountable) {
  // The largest micro-batch that there may be: 2^31 - 1 is prime.
  EXPECT_THAT(
      problems_of(
          {"training.micro_batch_size=1", "training.seq_length=2147483647"}),
      IsEmpty());
  EXPECT_THAT(
      problems_of(
          {"training.micro_batch_size=1", "training.seq_length=2147483648"}),
      ElementsAre(HasSubstr(
          "/training/micro_batch_size = 1 * /training/seq_length = 2147483648 "
          "are more tokens than the 2147483647 of a micro-batch")));
  // Products that wrap around 64 bits, to 0 and to something small.
  for (const char* size : {"4611686018427387904", "288230376151711745"}) {
    EXPECT_THAT(
        problems_of({std::string("training.micro_batch_size=") + size}),
        ElementsAre(AllOf(
            HasSubstr(
                std::string("/training/micro_batch_size = ") + size +
                " * /training/seq_length = 64"),
            HasSubstr("of a micro-batch"))));
  }
  // 2^30 * 2^30 tokens on each of 2 and of 8 ranks: 2^61 and 2^63.
  const std::vector<std::string> step = {
      "training.micro_batch_size=1",
      "training.seq_length=1073741824",
      "training.gradient_accumulation_steps=1073741824"};
  EXPECT_THAT(
      problems_of(step, 2), Not(Contains(HasSubstr("a step can count"))));
  EXPECT_THAT(
      problems_of(step, 8),
      Contains(AllOf(
          HasSubstr("/training/gradient_accumulation_steps = 1073741824"),
          HasSubstr("/distributed/dp_size = 8"),
          HasSubstr("more tokens than a step can count"))));
}

TEST(TrainConfig, SchedulesSayWhatTheyNeed) {
  EXPECT_THAT(
      problems_of(
          {"distributed.pp_size=2",
           "distributed.pp_engine=interleaved_1f1b",
           "distributed.pp_virtual_stages=2"},
          2),
      ElementsAre(AllOf(
          HasSubstr("at least 2 micro-batches"),
          HasSubstr("there are 1"),
          HasSubstr("that fit: dp 2 * pp 1 * cp 1 * tp 1 with "
                    "pp_virtual_stages=1"))));
  // The layout stays as it is where another number of virtual stages fits it.
  EXPECT_THAT(
      problems_of(
          {"distributed.pp_size=2",
           "distributed.pp_virtual_stages=2",
           "distributed.pp_layers=[1,1,1,1]",
           R"(training.recompute=["none","full","none","none"])"},
          2),
      ElementsAre(AllOf(
          HasSubstr("1f1b has one stage per rank"),
          HasSubstr("that fit: dp 1 * pp 2 * cp 1 * tp 1 with "
                    "pp_virtual_stages=1 and pp_layers=null and "
                    "recompute=none; "))));
  for (const char* virtual_stages : {"1", "4"})
    EXPECT_THAT(
        problems_of(
            {"distributed.pp_size=2",
             "distributed.pp_engine=interleaved_1f1b",
             std::string("distributed.pp_virtual_stages=") + virtual_stages,
             "training.gradient_accumulation_steps=2"},
            2),
        ElementsAre(HasSubstr("that fit: dp 1 * pp 2 * cp 1 * tp 1 with "
                              "pp_virtual_stages=2; ")));
  // One rank is one stage, whatever the schedule: what the advice says fits.
  for (const char* engine : {"1f1b", "interleaved_1f1b"}) {
    const std::string schedule = std::string("distributed.pp_engine=") + engine;
    EXPECT_THAT(
        problems_of({schedule, "distributed.pp_virtual_stages=2"}, 2),
        ElementsAre(AllOf(
            HasSubstr("pp_virtual_stages = 2 needs a pp_size of at least 2"),
            HasSubstr("dp 2 * pp 1 * cp 1 * tp 1 with pp_virtual_stages=1"))));
    EXPECT_THAT(
        problems_of({schedule, "distributed.pp_virtual_stages=1"}, 2),
        IsEmpty());
  }
  EXPECT_THAT(
      problems_of(
          {"distributed.pp_size=4",
           "distributed.pp_engine=interleaved_1f1b",
           "distributed.pp_virtual_stages=1",
           "training.gradient_accumulation_steps=3"},
          4),
      ElementsAre(
          HasSubstr("needs pp_virtual_stages of at least 2"),
          HasSubstr("at least 4 micro-batches")));
  EXPECT_THAT(
      problems_of({"distributed.pp_size=2", "distributed.pp_layers=[1,2]"}, 2),
      ElementsAre(AllOf(
          HasSubstr("adds up to 3, but the model has 4"),
          Not(HasSubstr("that fit")))));
  EXPECT_THAT(
      problems_of(
          {"distributed.pp_size=2", R"(training.recompute=["full"])"}, 2),
      IsEmpty());
  EXPECT_THAT(
      problems_of(
          {"distributed.pp_size=2",
           R"(training.recompute=["full","none","none"])"},
          2),
      ElementsAre(HasSubstr("3 entries, but there are 2 stages")));
}

// ---- the model's file

class ModelFileTest : public ::testing::Test {
 protected:
  ModelFileTest() {
    write_text_file(
        folder_ / "config.json", minimal()["model"]["config"].dump());
  }
  std::vector<std::string> from(const std::string& name) const {
    return {"model.config=null", "model.name=" + name};
  }
  const TemporaryFolder folder_;
};

TEST_F(ModelFileTest, AFolderOrAPathLeadsToTheModel) {
  for (const fs::path& path : {folder_.path(), folder_ / "config.json"}) {
    const auto loaded = load(minimal().dump(), from(path.string()));
    EXPECT_EQ(loaded.config.model.decoder->hidden_size, 64) << path;
    EXPECT_EQ(loaded.config.model.folder, folder_.path());
  }
}

TEST_F(ModelFileTest, AFolderOfAnotherKindIsCalledSo) {
  for (const auto& [file, what] :
       {std::pair{"adapter_config.json", "it is an adapter of PEFT"},
        std::pair{"manifest.json", "it is a run of Brigade"},
        std::pair{"metrics.jsonl", "it is a run of Brigade"}}) {
    const TemporaryFolder other;
    write_text_file(other / file, "{}");
    if (file == std::string("metrics.jsonl")) {
      fs::create_directory(other / "checkpoints");
      write_text_file(other / "config.json", "{}");  // the run's
    }
    EXPECT_THAT(
        message_of<ConfigError>(
            [&] { load(minimal().dump(), from(other.path().string())); }),
        HasSubstr(what));
  }
}

TEST_F(ModelFileTest, AnIdIsLeftToBeFound) {
  LoadOptions options{.path = "run.json"};
  for (const std::string& override : from("some/model"))
    options.overrides.push_back({override});
  EXPECT_FALSE(
      parse_train_config(minimal().dump(), options).config.model.decoder);
  options.find_model = [&](const std::string& id) -> std::optional<fs::path> {
    EXPECT_EQ(id, "some/model");
    return folder_;
  };
  TrainConfig config = parse_train_config(minimal().dump(), options).config;
  EXPECT_EQ(config.model.decoder->hidden_size, 64);
  EXPECT_EQ(config.model.folder, folder_.path());
  config.model.decoder.reset();
  resolve_model(config, folder_);
  EXPECT_EQ(config.model.decoder->hidden_size, 64);
  config.distributed.dims.tp = 3;
  EXPECT_THROW(resolve_model(config, folder_), ConfigError);
}

TEST_F(ModelFileTest, ItsErrorsNameTheFile) {
  EXPECT_THAT(
      problems(minimal().dump(), from("./no/such/folder")),
      ElementsAre(HasSubstr("\"./no/such/folder\": there is no such file")));
  // A damaged file is not the config's fault.
  for (const char* damaged : {"{", "{\"hidden_size\": 1, hidden_size: 2}"}) {
    write_text_file(folder_ / "config.json", damaged);
    EXPECT_THAT(
        [&] { load(minimal().dump(), from(folder_.path().string())); },
        ThrowsMessage<DataError>(
            HasSubstr((folder_ / "config.json").string() + ":1:")))
        << damaged;
  }
  write_text_file(folder_ / "config.json", "{\"hidden_size\": 0}");
  EXPECT_THAT(
      problems(minimal().dump(), from(folder_.path().string())),
      Contains(AllOf(
          HasSubstr((folder_ / "config.json").string()),
          HasSubstr("hidden_size"))));
}

// ---- the config as a file, its hash, its docs

TEST(TrainConfig, TheSavedConfigGivesTheSameRunAgain) {
  const auto first = load(
      minimal().dump(),
      {"training.recompute=full",
       "distributed.tp_size=2",
       "dataset.shuffle=true"},
      4);
  const std::string saved = to_json(first.config).dump(2);
  const auto second = load(saved, {}, 4);
  EXPECT_EQ(to_json(second.config), to_json(first.config));
  EXPECT_EQ(config_hash(second.config), config_hash(first.config));
  EXPECT_EQ(second.config.model.decoder, first.config.model.decoder);
}

TEST(TrainConfig, TheHashFollowsValuesAndNotHowTheyWereWritten) {
  const auto hash = [](const std::string& text,
                       const std::vector<std::string>& overrides = {}) {
    return config_hash(load(text, overrides).config);
  };
  const std::string plain = hash(minimal().dump());
  EXPECT_THAT(plain, ::testing::MatchesRegex("[0-9a-f]{16}"));
  // Another order of keys, a default written out, and the environment.
  std::string reordered = R"({"dataset": {"name": "data/tokens"},
    "training": {"seed": 42, "seq_length": 64}, "model": )" +
                          minimal()["model"].dump() + "}";
  EXPECT_EQ(hash(reordered), plain);
  EXPECT_EQ(hash(minimal().dump(), {"environment.OMP_NUM_THREADS=2"}), plain);
  EXPECT_NE(hash(minimal().dump(), {"training.seed=43"}), plain);
  EXPECT_NE(hash(minimal().dump(), {"model.config.vocab_size=260"}), plain);
}

TEST(TrainConfig, EveryKeyIsInTheHelpAndInTheDocs) {
  const std::string help = describe_keys();
  const std::string docs =
      read_text_file(fs::path(BRIGADE_SOURCE_DIR) / "docs/config.md");
  for (const ResolvedValue& value : load(minimal().dump()).values)
    EXPECT_THAT(help, HasSubstr("  " + value.key + "  ("));
  EXPECT_THAT(docs, HasSubstr(describe_keys_as_markdown()))
      << "docs/config.md is out of date: put the output of `brigade train "
         "--help-config=markdown` there";
}

// `brigade prepare` writes what its tokenizer has.
TEST(TrainConfig, TheVocabularyMayBeTheDatasets) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    write_text_file(folder / (std::string(name) + ".json"), text);
    return (folder / name).string();
  };
  const std::string small = write("small", R"({"vocab_size": 300})");
  const std::string large = write("large", R"({"vocab_size": 400})");
  const std::string silent = write("silent", "{}");
  json config = minimal();
  config["model"]["config"].erase("vocab_size");
  const auto vocabulary = [&](const json& dataset) {
    config["dataset"] = dataset;
    const LoadedConfig loaded = load(config.dump());
    // A file that gives the same run again has it.
    EXPECT_EQ(
        to_json(loaded.config)["model"]["config"]["vocab_size"],
        loaded.config.model.decoder->vocab_size);
    return loaded.config.model.decoder->vocab_size;
  };
  EXPECT_EQ(vocabulary({{"name", small}}), 300);
  EXPECT_EQ(vocabulary({{"name", small + ".bin"}}), 300);
  const json part = {{"name", small}, {"weight", 1}};
  const json other = {{"name", large}, {"weight", 1}};
  EXPECT_EQ(vocabulary({{"mixture", json::array({part, other})}}), 400);
  config["dataset"] = {{"name", silent}};
  EXPECT_THAT(
      problems(config.dump()),
      ElementsAre(AllOf(
          HasSubstr("/model/config/vocab_size is not given"),
          HasSubstr(silent))));
  config["model"]["config"].erase("hidden_size");
  EXPECT_THAT(
      problems(config.dump()),
      ElementsAre(HasSubstr("/model/config/hidden_size")));
}

TEST(TrainConfigExperts, NamesOptionsThatDoNotGoWithEp) {
  EXPECT_THAT(
      problems_of({"distributed.ep_size=2"}, 2),
      ElementsAre(
          HasSubstr("ep_size = 2: the model has no experts to divide")));
  EXPECT_THAT(
      problems_of({"training.expert_capacity_factor=1.25"}),
      ElementsAre(HasSubstr(
          "expert_capacity_factor = 1.25: this model has no experts")));
  EXPECT_THAT(
      problems_of(
          {"training.router_z_loss=0.1",
           "training.router_aux_loss=0.5",
           "training.router_aux_loss_over=global_batch",
           "training.router_bias_rate=0.1"}),
      ElementsAre(
          HasSubstr("router_aux_loss = 0.5: this model has no experts"),
          HasSubstr("router_aux_loss_over = \"global_batch\": this model has"),
          HasSubstr("router_z_loss = 0.1: this model has no experts"),
          HasSubstr("router_bias_rate = 0.1: this model has no routers with")));
  EXPECT_THAT(
      problems_of(
          {"training.router_aux_loss=0", "training.router_bias_rate=0"}),
      IsEmpty());
  const auto of_experts = [](std::vector<std::string> overrides, int ranks) {
    overrides.insert(
        overrides.end(),
        {R"(model.config.architectures=["MixtralForCausalLM"])",
         "model.config.model_type=mixtral",
         "model.config.num_local_experts=4",
         "model.config.num_experts_per_tok=2"});
    return problems_of(overrides, ranks);
  };
  EXPECT_THAT(of_experts({"distributed.ep_size=2"}, 2), IsEmpty());
  EXPECT_THAT(
      of_experts({"training.router_bias_rate=0.1"}, 1),
      ElementsAre(HasSubstr("router_bias_rate = 0.1: this model has no routers "
                            "with a bias")));
  EXPECT_THAT(
      problems_of(
          {R"(model.config.architectures=["Glm4MoeForCausalLM"])",
           "model.config.model_type=glm4_moe",
           "model.config.n_routed_experts=4",
           "model.config.num_experts_per_tok=2",
           "model.config.moe_intermediate_size=16",
           "adapter.rank=4",
           "training.router_bias_rate=0.01"}),
      Contains(HasSubstr("router_bias_rate = 0.01: this model has no bias that "
                         "moves: beside an adapter")));
  EXPECT_THAT(
      of_experts({"distributed.ep_size=3"}, 3),
      ElementsAre(AllOf(
          HasSubstr("ep_size = 3 does not divide the model's 4 experts"),
          HasSubstr("that fit: dp 3 * pp 1 * cp 1 * tp 1 with ep_size=1"))));
  // This many ranks exist already; more would leave dp x cp as it is.
  EXPECT_THAT(
      of_experts({"distributed.ep_size=2", "distributed.tp_size=2"}, 2),
      ElementsAre(AllOf(
          HasSubstr("ep 2 does not divide dp 1 * cp 1 = 1"),
          Not(HasSubstr("start ")),
          HasSubstr("that fit: dp 1 * pp 1 * cp 1 * tp 2 with ep_size=1; dp 2 "
                    "* pp 1 * cp 1 * tp 1 (ep 2)"))));
  EXPECT_THAT(
      of_experts(
          {"distributed.ep_size=2",
           "distributed.dp_size=1",
           "distributed.tp_size=2"},
          4),
      ElementsAre(AllOf(
          HasSubstr("tp 2 (ep 2) = 2, but world size is 4; change "),
          HasSubstr("that fit: dp 2 * pp 1 * cp 1 * tp 2 (ep 2)"))));
  const std::vector<std::string> apart = {
      "distributed.ep_size=2", "distributed.local_steps=4"};
  EXPECT_THAT(
      of_experts(apart, 4),
      ElementsAre(HasSubstr("ep_size = 2 does not divide the 1 ranks of dp x "
                            "cp of a group")));
  std::vector<std::string> in_pairs = apart;
  in_pairs.emplace_back("distributed.local_groups=2");
  EXPECT_THAT(of_experts(in_pairs, 4), IsEmpty());
  EXPECT_THAT(
      of_experts({"distributed.ep_size=2", "training.optimizer=muon"}, 2),
      IsEmpty());
  EXPECT_THAT(
      of_experts(
          {"adapter.rank=4",
           R"(adapter.targets=["q_proj","w1","gate"])",
           "adapter.use_dora=true"},
          1),
      Contains(HasSubstr("use_dora with /adapter/targets that name "
                         "'model.layers.0.block_sparse_moe.gate'")));
  // A rank without adapted experts would not take part in the others'
  // collectives.
  const auto adapted = [&](const std::string& targets, int ep) {
    return of_experts(
        {"adapter.rank=4",
         "adapter.targets=" + targets,
         "distributed.ep_size=" + std::to_string(ep)},
        2);
  };
  const std::string some = R"(["q_proj","w2","experts.3.w1"])";
  EXPECT_THAT(
      adapted(some, 2),
      Contains(HasSubstr("ep_size = 2: they name 'w1' of 1 of the 4 experts of "
                         "layer 0")));
  EXPECT_THAT(adapted(some, 1), Not(Contains(HasSubstr("they name"))));
  EXPECT_THAT(
      adapted(R"(["q_proj","w2"])", 2), Not(Contains(HasSubstr("they name"))));
}

}  // namespace
}  // namespace brigade
