// The figures of fine-tuning, by the program itself, each a ratio of two
// things that take turns:
//
//   build/release/bench_finetune                  # all, 3 rounds each
//   build/release/bench_finetune generate [ROUNDS]
//   build/release/bench_finetune lora|packed|memory [ROUNDS]
//
//   generate   tokens/s of `brigade generate` times the bytes of the weights,
//              over the rate at which as many bytes are read from memory by as
//              many threads (2): the 135 M and 1 B shapes in bf16, one text
//   lora       a step with adapters of rank 16 over a full one, 135 M shape, in
//              processor time and memory
//   packed     tokens/s of packed documents of 200 tokens on average over those
//              of dense sequences of 2,048; padding is not counted
//   memory     a 1 B model in bf16 with adapters on one rank: what it takes
//
// Weights are synthetic, in a temporary folder: 3 GB for the 1 B shape. Steps
// are of one rank of one thread.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "bench/program_runs.h"
#include "brigade/metrics/clock.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/safetensors/folder.h"
#include "brigade/safetensors/writer.h"

namespace brigade::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kThreads = 2;  // of generation

struct Shape {
  const char* name;
  int hidden, layers, heads, key_heads, ffn, vocabulary;
};
constexpr Shape k135M{"smollm_135m", 576, 30, 9, 3, 1536, 49152};
constexpr Shape k1B{"llama_1b", 2048, 16, 32, 8, 8192, 128256};
constexpr Shape k15M{"stories15m", 288, 6, 6, 6, 768, 32000};

json model_json(const Shape& shape) {
  return {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", shape.vocabulary},
      {"hidden_size", shape.hidden},
      {"intermediate_size", shape.ffn},
      {"num_hidden_layers", shape.layers},
      {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.key_heads},
      {"max_position_embeddings", 4096},
      {"tie_word_embeddings", true},
      {"torch_dtype", "bfloat16"}};
}

// A folder as Hugging Face's, of small weights that repeat; its bytes.
uint64_t write_model(const fs::path& folder, const Shape& shape) {
  std::vector<std::string> problems;
  const json config = model_json(shape);
  const DecoderConfig decoder = parse_decoder_config(config, "", problems);
  if (!problems.empty())
    throw ConfigError("[bench] " + problems.front());
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(2);
  std::vector<TensorSpec> specs;
  uint64_t bytes = 0;
  uint64_t most = 0;
  for (const ParameterRow& row : list_parameters(decoder)) {
    specs.push_back(
        {row.name,
         SafetensorsDtype::kBF16,
         {row.shape.begin(), row.shape.end()}});
    bytes += size_bytes(specs.back());
    most = std::max(most, size_bytes(specs.back()));
  }
  // bf16 of about 2^-6 with either sign.
  std::mt19937 random(1);
  std::vector<uint16_t> values(most / sizeof(uint16_t));
  for (uint16_t& value : values)
    value = static_cast<uint16_t>(0x3c00 | (random() & 0x80ff));
  SafetensorsWriter writer(folder / kSafetensorsFile, std::move(specs));
  for (const TensorSpec& spec : writer.order())
    writer.write_next(std::as_bytes(std::span(values)).first(size_bytes(spec)));
  writer.commit();
  return bytes;
}

// Reads of a buffer, by kThreads threads at once.
class MemoryReads {
 public:
  explicit MemoryReads(size_t bytes)
      : words_(bytes / sizeof(uint64_t)),
        memory_(
            static_cast<uint64_t*>(::mmap(
                nullptr,
                bytes,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS,
                -1,
                0)),
            [bytes](uint64_t* memory) { ::munmap(memory, bytes); }) {
    if (memory_.get() == MAP_FAILED)
      throw Error(ExitCode::kUnexpected, "[bench] not enough memory");
    ::madvise(memory_.get(), bytes, MADV_HUGEPAGE);  // as weights lie in
    std::fill_n(memory_.get(), words_, 1);
  }

  double bytes_per_second() const {
    const int64_t begin_ns = steady_now_ns();
    std::array<uint64_t, kThreads> sums{};
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        const uint64_t* from = memory_.get();
        sums[i] = std::accumulate(
            from + words_ * i / kThreads,
            from + words_ * (i + 1) / kThreads,
            uint64_t{0});
      });
    threads.clear();
    const auto ns = static_cast<double>(steady_now_ns() - begin_ns);
    if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) != words_)
      throw Error(ExitCode::kUnexpected, "[bench] memory was misread");
    return static_cast<double>(words_ * sizeof(uint64_t)) / ns * 1e9;
  }

 private:
  size_t words_;
  std::unique_ptr<uint64_t, std::function<void(uint64_t*)>> memory_;
};

// What the program says of its own rate.
double generate_tokens_per_second(const fs::path& model, int tokens) {
  const std::string command = fmt::format(
      "OMP_NUM_THREADS={} '{}/brigade' generate --run '{}' --tokenizer bytes "
      "--prompt Once --max-tokens {} 2>&1 >/dev/null",
      kThreads,
      BRIGADE_BINARY_DIR,
      model.string(),
      tokens);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(command.c_str(), "r"), ::pclose);
  if (!pipe)
    throw StorageError("[bench] cannot start: " + command);
  std::array<char, 4096> line{};
  int made = 0;
  double seconds = 0;
  double rate = 0;
  while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr)
    if (std::sscanf(
            line.data(),
            "%d tokens in %lf s: %lf tokens/s",
            &made,
            &seconds,
            &rate) == 3)
      return rate;
  throw Error(ExitCode::kUnexpected, "[bench] no rate from: " + command);
}

void measure_generation(const fs::path& folder, int rounds) {
  for (const Shape& shape : {k135M, k1B}) {
    const fs::path model = folder / shape.name;
    const auto bytes = static_cast<double>(write_model(model, shape));
    const MemoryReads reads(static_cast<size_t>(bytes));
    std::vector<double> rates;
    std::vector<double> ratios;
    std::vector<double> bandwidths;
    for (int round = 0; round < rounds; ++round) {
      const double before = reads.bytes_per_second();
      rates.push_back(generate_tokens_per_second(model, 64));
      bandwidths.push_back((before + reads.bytes_per_second()) / 2);
      ratios.push_back(rates.back() * bytes / bandwidths.back());
    }
    fmt::print(
        "generate, {}: {:.1f} tokens/s of {:.2f} GB, memory reads {:.1f} GB/s: "
        "{:.2f} of that rate (best {:.2f}; at least 0.6)\n",
        shape.name,
        median(rates),
        bytes / 1e9,
        median(bandwidths) / 1e9,
        median(ratios),
        *std::max_element(ratios.begin(), ratios.end()));
    fs::remove_all(model);
  }
}

const json kSteps512 = {
    {"seq_length", 512},
    {"micro_batch_size", 2},
    {"gradient_accumulation_steps", 1},
    {"learning_rate", 1e-4}};

std::vector<std::string> adapters(const fs::path& model, const char* targets) {
  return {
      "model.config=null",
      "model.name=" + model.string(),
      "model.init=pretrained",
      "adapter.rank=16",
      "adapter.alpha=32",
      fmt::format("adapter.targets={}", targets)};
}

struct StepCost {
  double processor_seconds = 0;
  double memory_gb = 0;
};

// The difference of two runs, so that their start does not count; of processor
// time, which other work on the machine changes least.
StepCost cost_of_step(
    const ProgramRuns& runs,
    const std::vector<std::string>& overrides) {
  const auto cost_of = [&](int steps) {
    std::vector<std::string> all = overrides;
    all.push_back(fmt::format("training.total_train_steps={}", steps));
    const auto processor_seconds = [] {
      rusage usage{};
      ::getrusage(RUSAGE_CHILDREN, &usage);
      return static_cast<double>(usage.ru_utime.tv_sec) +
             static_cast<double>(usage.ru_utime.tv_usec) / 1e6;
    };
    const double before = processor_seconds();
    const double memory_gb = runs.train(1, all).memory_gb;
    return StepCost{processor_seconds() - before, memory_gb};
  };
  constexpr int kFew = 4;
  const StepCost few = cost_of(kFew);
  const StepCost many = cost_of(2 * kFew);
  return {
      (many.processor_seconds - few.processor_seconds) / kFew, many.memory_gb};
}

void measure_lora(const fs::path& folder, int rounds) {
  const fs::path model = folder / k135M.name;
  write_model(model, k135M);
  ProgramRuns runs(folder);
  runs.set_config(run_config(folder, model_json(k135M), kSteps512));
  struct Adapted {
    const char* targets;
    std::vector<double> times, memory;
  };
  std::vector<Adapted> all = {
      {R"(["q_proj","v_proj"])", {}, {}}, {R"(["all-linear"])", {}, {}}};
  for (int round = 0; round < rounds; ++round) {
    const StepCost full = cost_of_step(runs, {});
    for (Adapted& adapted : all) {
      const StepCost lora =
          cost_of_step(runs, adapters(model, adapted.targets));
      adapted.times.push_back(lora.processor_seconds / full.processor_seconds);
      adapted.memory.push_back(lora.memory_gb / full.memory_gb);
    }
    fmt::print(
        "  full: {:.2f} s, {:.2f} GB\n",
        full.processor_seconds,
        full.memory_gb);
  }
  for (const Adapted& adapted : all)
    fmt::print(
        "lora, {}: a step takes {:.2f} of a full one's processor time (at most "
        "0.75), holds "
        "{:.2f} of its memory (at most 0.35)\n",
        adapted.targets,
        median(adapted.times),
        median(adapted.memory));
}

// Documents of 50 to 350 bytes, which are tokens here, with their ends 200 on
// average.
void write_documents(const fs::path& file) {
  std::ofstream out(file);
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const int letters = 49 + static_cast<int>(random() % 301);
    out << json{{"text", std::string(static_cast<size_t>(letters), 'a')}}.dump()
        << "\n";
  }
}

void measure_packing(const fs::path& folder, int rounds) {
  write_documents(folder / "documents.jsonl");
  ProgramRuns runs(folder);
  runs.prepare(folder / "documents.jsonl", "documents");
  runs.set_config(run_config(
      folder,
      model_json(k15M),
      {{"seq_length", 2048},
       {"micro_batch_size", 1},
       {"gradient_accumulation_steps", 2},
       {"learning_rate", 1e-4}}));
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const Measured dense = runs.train(1, {});
    const Measured packed = runs.train(
        1,
        {"dataset.name=" + (folder / "documents").string(),
         "dataset.packing=best_fit"});
    // A document's first token is no target.
    ratios.push_back(
        packed.loss_tokens_per_second * 200 / 199 / dense.tokens_per_second);
  }
  fmt::print(
      "packed: {:.2f} of the tokens/s of dense sequences (at least 0.95)\n",
      median(ratios));
}

void measure_memory(const fs::path& folder, int rounds) {
  const fs::path model = folder / k1B.name;
  write_model(model, k1B);
  ProgramRuns runs(folder);
  json training = kSteps512;
  training["micro_batch_size"] = 1;
  json config = run_config(folder, model_json(k1B), training);
  runs.set_config(config);
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::string> overrides =
        adapters(model, R"(["q_proj","v_proj"])");
    overrides.emplace_back("training.recompute=full");
    const Measured run = runs.train(1, overrides);
    fmt::print(
        "memory, {}: {:.2f} GB (at most 4), {:.0f} tokens/s\n",
        k1B.name,
        run.memory_gb,
        run.tokens_per_second);
  }
  fs::remove_all(model);
}

int run(const std::vector<std::string>& words) {
  const std::string what = words.empty() ? "" : words[0];
  const int rounds = words.size() > 1 ? positive_number("ROUNDS", words[1]) : 3;
  const fs::path folder = make_temporary_folder("bench_finetune");
  const std::shared_ptr<void> remover(
      nullptr, [&](void*) { fs::remove_all(folder); });
  const std::pair<const char*, void (*)(const fs::path&, int)> all[] = {
      {"generate", measure_generation},
      {"lora", measure_lora},
      {"packed", measure_packing},
      {"memory", measure_memory}};
  bool is_known = false;
  for (const auto& [name, measure] : all) {
    if (!what.empty() && what != name)
      continue;
    measure(folder, rounds);
    is_known = true;
  }
  if (!is_known)
    throw ConfigError(fmt::format(
        "[bench] '{}': expected generate, lora, packed or memory", what));
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    return brigade::bench::run({argv + 1, argv + argc});
  });
}
