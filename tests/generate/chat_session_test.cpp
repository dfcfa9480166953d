// Conversations: every answer equals the continuation of the rendered text on
// one rank without a cache, and that of generate_text().
#include "brigade/generate/chat_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "brigade/base/error.h"
#include "brigade/checkpoint/save.h"
#include "brigade/files/file.h"
#include "brigade/generate/inference_config.h"
#include "brigade/generate/text_generator.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model/init_weights.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/tokenizer/tokenizer.h"
#include "tests/support/parsed_config.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using End = ChatAnswer::End;
using Messages = nlohmann::ordered_json;
using nlohmann::json;

constexpr int64_t kMost = 12;
constexpr int64_t kPositions = 96;
constexpr int kSpecial = 30;

// One token per character, and <|0|> to <|29|>, none of which ends a text.
json special_tokenizer() {
  json vocabulary = json::object();
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyz ."))
    vocabulary[std::string(1, c)] = vocabulary.size();
  json added = json::array();
  for (int i = 0; i < kSpecial; ++i)
    added.push_back(
        {{"id", vocabulary.size() + static_cast<size_t>(i)},
         {"content", "<|" + std::to_string(i) + "|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}});
  return {
      {"version", "1.0"},
      {"added_tokens", added},
      {"decoder", {{"type", "Fuse"}}},
      {"model",
       {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
}

// `end` ends the assistant's turns.
std::string template_with(const std::string& end) {
  return "{% for m in messages %}<|{{ {'system': 0, 'user': 1, 'assistant': 2}"
         "[m.role] }}|>{{ m.content }}{% if m.role == 'assistant' %}" +
         end +
         "{% endif %}{% endfor %}{% if add_generation_prompt %}<|2|>"
         "{% endif %}";
}

class ChatSessions : public ::testing::Test {
 protected:
  ChatSessions() {
    auto json = testing::tiny_run("none")["model"]["config"];
    json["initializer_range"] = 0.4;
    json["vocab_size"] = 28 + kSpecial;
    json["max_position_embeddings"] = kPositions;
    decoder_ = parsed_config(json);
    model_ = std::make_shared<DecoderModel>(
        std::make_shared<ModelContext>(single_rank_context(decoder_)),
        whole_model(decoder_));
    const torch::NoGradGuard no_grad;
    auto weights = model_->named_parameters();
    CheckpointToSave checkpoint;
    for (const ParameterRow& info : list_parameters(decoder_)) {
      weights[info.name].copy_(initial_weight(info, 3));
      checkpoint.weights.push_back(
          {.name = info.name, .tensor = weights[info.name].detach()});
    }
    checkpoint.manifest.dtype = "float32";
    checkpoint.manifest.model = to_hugging_face_json(decoder_, "float32");
    checkpoint.manifest.model.erase("eos_token_id");
    checkpoint.manifest.tokenizer = tokenizer().string();
    save_checkpoint(path(), std::move(checkpoint), SaveRanks{});
    fs::create_directory(tokenizer());
    testing::write_file(
        tokenizer() / "tokenizer.json", special_tokenizer().dump());
    use_template(template_with("<|3|>"));
  }

  fs::path path() const { return folder_ / "saved"; }
  fs::path tokenizer() const { return folder_ / "tokens"; }
  void use_template(const std::string& source) const {
    testing::write_file(tokenizer() / "chat_template.jinja", source);
  }
  ChatSessionOptions options() const {
    ChatSessionOptions options;
    options.text.model.path = path();
    options.text.max_tokens = kMost;
    options.text.temperature = 0;
    return options;
  }

  // Rank 0 of a layout runs `talk`; the other ranks follow.
  static void with_session(
      const ParallelDims& dims,
      const ChatSessionOptions& options,
      const std::function<void(ChatSession& session, bool is_first)>& talk) {
    const StoredModel stored(options.text.model);
    const TrainConfig config = inference_config(
        stored,
        {{"distributed.tp_size=" + std::to_string(dims.tp)},
         {"distributed.pp_size=" + std::to_string(dims.pp)}},
        dims.world_size());
    testing::run_ranks_with_store(
        dims.world_size(), [&](int rank, const StorePtr& store) {
          const ProcessMesh mesh(dims, rank, store);
          ChatSession session(stored, options, config, mesh);
          talk(session, rank == 0);
          mesh.world()->barrier();
        });
  }

  std::string rendered(const Messages& messages) const {
    return ChatTemplate::load(tokenizer().string())
        .render(messages, {.add_generation_prompt = true})
        .text;
  }

  // Greedy tokens after the prompt, each computed from scratch.
  std::vector<int32_t> naive_ids(
      const Messages& messages,
      const std::string& end) const {
    const auto tokens = load_tokenizer(tokenizer().string());
    const std::vector<int32_t> prompt = tokens->encode(rendered(messages));
    std::vector<int64_t> ids(prompt.begin(), prompt.end());
    std::vector<int32_t> answer;
    while (static_cast<int64_t>(answer.size()) < kMost) {
      const auto logits = model_->logits(torch::tensor(ids).unsqueeze(0));
      const auto next = logits[0][-1].argmax().item<int64_t>();
      if (next == tokens->token_id(end))
        break;
      ids.push_back(next);
      answer.push_back(static_cast<int32_t>(next));
    }
    return answer;
  }
  std::string text_of(const std::vector<int32_t>& ids) const {
    return load_tokenizer(tokenizer().string())
        ->decode(ids, {.skip_special_tokens = true});
  }

  testing::RunsFolder folder_;
  DecoderConfig decoder_;
  std::shared_ptr<DecoderModel> model_;
};

const char* const kSaid[] = {"hello", "who are you", "why"};

// The second template changes its beginning, so nothing can be kept.
TEST_F(ChatSessions, AnswerWhatTheWholeTextIsContinuedWith) {
  const std::string stable = template_with("<|3|>");
  const std::string unstable =
      "{% if messages | length > 4 %}c{% elif messages | length > 2 %}b"
      "{% else %}a{% endif %}" +
      stable;
  for (const std::string& source : {stable, unstable}) {
    use_template(source);
    for (const ParallelDims& dims :
         {ParallelDims{}, ParallelDims{.tp = 2, .pp = 2}}) {
      ChatSessionOptions with_system = options();
      with_system.system = "be short";
      with_session(dims, with_system, [&](ChatSession& session, bool is_first) {
        Messages messages = {{{"role", "system"}, {"content", "be short"}}};
        int64_t before = 0;
        for (const char* said : kSaid) {
          messages.push_back({{"role", "user"}, {"content", said}});
          std::string written;
          const ChatAnswer answer = session.answer(
              said, [&](std::string_view piece) { written += piece; });
          EXPECT_EQ(written, answer.text);
          messages.push_back({{"role", "assistant"}, {"content", answer.text}});
          // Special tokens of an answer are not repeated.
          const int64_t kept = source == stable || before == 0 ? before : 0;
          EXPECT_EQ(answer.kept_tokens > 0, kept > 0) << source;
          before = answer.prompt_tokens;
          EXPECT_EQ(answer.dropped_turns, 0);
          if (!is_first)
            continue;
          Messages asked = messages;
          asked.erase(asked.size() - 1);
          EXPECT_EQ(answer.text, text_of(naive_ids(asked, "<|3|>")));
        }
      });
    }
  }
}

TEST_F(ChatSessions, KeepWhatTheModelHasSeen) {
  with_session({}, options(), [&](ChatSession& session, bool) {
    const auto first = session.answer("hello", [](std::string_view) {});
    EXPECT_EQ(first.kept_tokens, 0);
    EXPECT_EQ(first.prompt_tokens, 7);  // <|1|>hello<|2|>
    const auto second = session.answer("why", [](std::string_view) {});
    EXPECT_GE(second.kept_tokens, 7);
    session.reset();
    const auto again = session.answer("hello", [](std::string_view) {});
    EXPECT_EQ(again.text, first.text);
    EXPECT_EQ(again.kept_tokens, 6);  // one is left, for its logits
  });
}

TEST_F(ChatSessions, DrawWhatGenerateDrawsForTheRenderedTexts) {
  testing::write_file(
      path() / "generation_config.json", R"({"eos_token_id": [31]})");
  ChatSessionOptions drawing = options();
  drawing.text.temperature = 1.2;
  drawing.text.top_k = 40;
  drawing.text.top_p = 0.95;
  drawing.text.seed = 7;
  Messages messages = Messages::array();
  std::vector<std::string> prompts;
  std::vector<std::string> answers;
  with_session({}, drawing, [&](ChatSession& session, bool) {
    for (const char* said : kSaid) {
      messages.push_back({{"role", "user"}, {"content", said}});
      prompts.push_back(rendered(messages));
      answers.push_back(session.answer(said, [](std::string_view) {}).text);
      messages.push_back({{"role", "assistant"}, {"content", answers.back()}});
    }
  });
  GenerateOptions generating = drawing.text;
  generating.prompts = prompts;
  generating.batch = 1;
  std::vector<std::string> texts(prompts.size());
  const TrainConfig config = inference_config(StoredModel({path()}), {}, 1);
  testing::run_ranks_with_store(1, [&](int rank, const StorePtr& store) {
    const ProcessMesh mesh({}, rank, store);
    generate_text(
        generating, config, mesh, [&](size_t prompt, std::string_view piece) {
          texts[prompt] += piece;
        });
  });
  const auto tokens = load_tokenizer(tokenizer().string());
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(texts[i], text_of(tokens->encode(prompts[i])) + answers[i]) << i;
  EXPECT_NE(answers[0], answers[1]);
}

// The token with which the template ends a turn, which neither the tokenizer
// nor the model names; here the model is known to write it.
TEST_F(ChatSessions, EndAtTheTemplatesEndOfTurn) {
  const Messages asked = {{{"role", "user"}, {"content", "hello"}}};
  const std::vector<int32_t> ids = naive_ids(asked, "<|3|>");
  ASSERT_FALSE(ids.empty());
  auto special = ids.begin() + 1;
  while (
      special != ids.end() &&
      (*special < 28 || std::find(ids.begin(), special, *special) != special))
    ++special;
  ASSERT_TRUE(special != ids.end());
  const std::vector<int32_t> before(ids.begin(), special);
  use_template(template_with("<|" + std::to_string(*special - 28) + "|>"));
  with_session({}, options(), [&](ChatSession& session, bool) {
    const auto answer = session.answer("hello", [](std::string_view) {});
    EXPECT_EQ(answer.end, End::kEndToken);
    EXPECT_EQ(answer.text, text_of(before));
    EXPECT_EQ(answer.generated_tokens, static_cast<int64_t>(before.size()));
  });
}

TEST_F(ChatSessions, AStoppedAnswerStaysInTheConversation) {
  with_session({}, options(), [&](ChatSession& session, bool) {
    int pieces = 0;
    const auto stopped = session.answer(
        "hello", [](std::string_view) {}, [&] { return ++pieces > 3; });
    EXPECT_EQ(stopped.end, End::kStopped);
    EXPECT_EQ(stopped.generated_tokens, 3);
    const auto next = session.answer("why", [](std::string_view) {});
    EXPECT_EQ(
        next.text,
        text_of(naive_ids(
            {{{"role", "user"}, {"content", "hello"}},
             {{"role", "assistant"}, {"content", stopped.text}},
             {{"role", "user"}, {"content", "why"}}},
            "<|3|>")));
  });
}

TEST_F(ChatSessions, TheOldestTurnsMakeRoomForTheAnswer) {
  ChatSessionOptions with_system = options();
  with_system.system = "be short";
  with_session({}, with_system, [&](ChatSession& session, bool) {
    const std::string filler(40, 'x');
    session.answer(filler, [](std::string_view) {});
    const auto second = session.answer(filler, [](std::string_view) {});
    EXPECT_EQ(second.dropped_turns, 1);
    EXPECT_EQ(second.prompt_tokens, 51);  // <|0|>be short<|1|>...<|2|>
    EXPECT_EQ(
        second.text,
        text_of(naive_ids(
            {{{"role", "system"}, {"content", "be short"}},
             {{"role", "user"}, {"content", filler}}},
            "<|3|>")));
  });
}

TEST_F(ChatSessions, AMessageThatIsTooLongIsRefusedAndForgotten) {
  with_session({}, options(), [&](ChatSession& session, bool) {
    const auto ignore = [](std::string_view) {};
    EXPECT_THAT(
        [&] { session.answer(std::string(kPositions - 2, 'x'), ignore); },
        ThrowsMessage<DataError>(AllOf(
            HasSubstr("the message has 96 tokens"),
            HasSubstr("96 positions"))));
    const auto longest =
        session.answer(std::string(kPositions - 3, 'x'), ignore);
    EXPECT_EQ(longest.end, End::kPositions);
    EXPECT_EQ(longest.generated_tokens, 1);
    session.reset();
    EXPECT_EQ(
        session.answer("hello", ignore).text,
        text_of(
            naive_ids({{{"role", "user"}, {"content", "hello"}}}, "<|3|>")));
  });
}

TEST_F(ChatSessions, AModelWithoutATemplateSaysHowToGiveOne) {
  fs::remove(tokenizer() / "chat_template.jinja");
  EXPECT_THAT(
      [&] { with_session({}, options(), [](ChatSession&, bool) {}); },
      ThrowsMessage<DataError>(HasSubstr("give one with --template FILE")));
  ChatSessionOptions given = options();
  given.template_file = folder_ / "given.jinja";
  testing::write_file(given.template_file, template_with("<|3|>"));
  with_session({}, given, [](ChatSession& session, bool) {
    EXPECT_EQ(
        session.answer("hello", [](std::string_view) {}).prompt_tokens, 7);
  });
}

}  // namespace
}  // namespace brigade
