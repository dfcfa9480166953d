#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/data/dataset_info.h"
#include "brigade/data/json_list_stream.h"
#include "brigade/data/prepare.h"
#include "brigade/data/show_samples.h"
#include "brigade/data/token_dataset.h"
#include "brigade/files/file.h"
#include "data_test_files.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + "
    "'<|im_end|>\n' }}{% endfor %}";

class PrepareChatTest : public DataTest {
 protected:
  PrepareOptions options(const std::string& lines) const {
    write("chat.jinja", kTemplate);
    PrepareOptions options{
        .inputs = {write("chat.jsonl", lines)},
        .out_prefix = folder_ / "chat",
        .tokenizer =
            BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/qwen2_like.json",
        .existing = PrepareOptions::Existing::kOverwrite,
        .chat = PrepareChatOptions{}};
    options.chat->template_file = folder_ / "chat.jinja";
    return options;
  }
  // The samples, with the counting tokens in brackets.
  std::vector<std::string> samples(const PrepareOptions& options) const {
    const PrepareResult result = prepare(options);
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < result.info.num_documents; ++i) {
      const std::string text = show_sample(
          options.out_prefix, result.info.tokenizer, i, {"[[", "]]"});
      texts.push_back(text.substr(text.find('\n') + 1));
      texts.back().pop_back();
    }
    return texts;
  }
  std::string sample(
      const std::string& line,
      std::optional<LossOn> loss = std::nullopt) const {
    PrepareOptions prepared = options(line);
    prepared.chat->loss = loss;
    return samples(prepared).at(0);
  }
  static std::string message_of_prepare(const PrepareOptions& options) {
    return message_of<DataError>([&] { prepare(options); });
  }
};

constexpr const char* kTwoTurns =
    R"({"messages": [{"role": "user", "content": "Q"},)"
    R"({"role": "assistant", "content": "A B"},)"
    R"({"role": "user", "content": "R"},)"
    R"({"role": "assistant", "content": "C"}]})";

TEST_F(PrepareChatTest, TheAssistantsTurnsCountWithTheTokenThatEndsThem) {
  EXPECT_EQ(
      sample(kTwoTurns),
      "<|im_start|>user\nQ<|im_end|>\n"
      "<|im_start|>assistant\n[[A B<|im_end|>]]\n"
      "<|im_start|>user\nR<|im_end|>\n"
      "<|im_start|>assistant\n[[C<|im_end|>]]\n");
  EXPECT_THAT(
      sample(kTwoTurns, LossOn::kLast),
      HasSubstr("A B<|im_end|>\n<|im_start|>user\nR<|im_end|>\n"
                "<|im_start|>assistant\n[[C<|im_end|>]]"));
  // The first token has no token before it.
  EXPECT_THAT(
      sample(kTwoTurns, LossOn::kAll),
      testing::AllOf(
          testing::StartsWith("<|im_start|>[[user\nQ"),
          testing::EndsWith("C<|im_end|>\n]]")));
}

TEST_F(PrepareChatTest, AMessageOfWeightZeroDoesNotCount) {
  EXPECT_THAT(
      sample(R"({"messages": [{"role": "user", "content": "Q"},)"
             R"({"role": "assistant", "content": "bad", "weight": 0},)"
             R"({"role": "user", "content": "R"},)"
             R"({"role": "assistant", "content": "good"}]})"),
      testing::AllOf(
          HasSubstr("\nbad<|im_end|>"), HasSubstr("[[good<|im_end|>]]")));
}

TEST_F(PrepareChatTest, ReadsTheFormsThatPeopleHave) {
  const std::string chat =
      "<|im_start|>user\nQ<|im_end|>\n"
      "<|im_start|>assistant\n[[A<|im_end|>]]\n";
  EXPECT_EQ(
      sample(R"({"conversations": [{"from": "human", "value": "Q"},)"
             R"({"from": "gpt", "value": "A"}]})"),
      chat);
  EXPECT_EQ(
      sample(R"({"instruction": "Q", "input": "", "output": "A"})"), chat);
  EXPECT_EQ(
      sample(R"({"prompt": [{"role": "user", "content": "Q"}],)"
             R"("completion": [{"role": "assistant", "content": "A"}]})"),
      chat);
  EXPECT_EQ(
      sample(R"({"prompt": "One two", "completion": " three"})"),
      "One two[[ three<|endoftext|>]]");
  EXPECT_THAT(sample(R"({"text": "One two"})"), HasSubstr("[["));
  // Plain text ignores "tools", which only templates read.
  EXPECT_THAT(
      sample(R"({"text": "One two", "tools": "a hammer"})"), HasSubstr("[["));
  // An end token in the text is not added again.
  EXPECT_EQ(
      sample(R"({"prompt": "One two", "completion": " three<|endoftext|>"})"),
      "One two[[ three<|endoftext|>]]");
  // Tables hold empty texts for missing values.
  EXPECT_EQ(
      sample(R"({"instruction": "Q", "output": "A", "system": ""})"), chat);
  EXPECT_EQ(
      sample(R"({"conversations": [{"from": "human", "value": "Q"},)"
             R"({"from": "gpt", "value": "A"}], "system": "", "tools": ""})"),
      chat);
}

// They may also be JSON in a string, as tables have them.
TEST_F(PrepareChatTest, TemplatesReadToolsAndVariablesOfALine) {
  PrepareOptions of_all =
      options(R"({"messages": [{"role": "assistant", "content": "A"}], )"
              R"("tools": "[{\"name\": \"f\"}]", )"
              R"("chat_template_kwargs": {"mood": "calm"}})"
              "\n"
              R"({"messages": [{"role": "assistant", "content": "B"}], )"
              R"("tools": [{"name": "g"}]})"
              "\n");
  write(
      "chat.jinja",
      "{{ tools[0].name }} {{ mood }} {% for m in messages %}"
      "{{ m.content + '<|im_end|>' }}{% endfor %}");
  of_all.chat->variables = {{"mood", "cross"}};
  EXPECT_THAT(
      samples(of_all),
      testing::ElementsAre(
          "f calm [[A<|im_end|>]]", "g cross [[B<|im_end|>]]"));
  write(
      "chat.jsonl",
      R"({"messages": [{"role": "user", "content": "Q"}], "tools": 3})");
  EXPECT_THAT(message_of_prepare(of_all), HasSubstr("'tools' is neither"));
}

TEST_F(PrepareChatTest, GenerationBlocksSayWhatCounts) {
  PrepareOptions prepared = options(kTwoTurns);
  write(
      "chat.jinja",
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
      "{% if m.role == 'assistant' %}{% generation %}"
      "{{ 'So: ' + m.content + '<|im_end|>' }}{% endgeneration %}"
      "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}"
      "{% endfor %}");
  EXPECT_THAT(
      samples(prepared).at(0),
      testing::AllOf(
          HasSubstr("[[So: A B<|im_end|>]]"),
          HasSubstr("[[So: C<|im_end|>]]"),
          HasSubstr("Q<|im_end|>")));
}

TEST_F(PrepareChatTest, PairsAreTwoConversationsEach) {
  const std::string asked = "<|im_start|>user\nQ<|im_end|>\n";
  const std::string good = asked + "<|im_start|>assistant\n[[A B<|im_end|>]]\n";
  const std::string bad = asked + "<|im_start|>assistant\n[[C<|im_end|>]]\n";
  const std::string user = R"({"role": "user", "content": "Q"})";
  const std::string says_a = R"({"role": "assistant", "content": "A B"})";
  const std::string says_c = R"({"role": "assistant", "content": "C"})";
  const std::string with_prompt = R"({"prompt": [)" + user +
                                  R"(], "chosen": [)" + says_a +
                                  R"(], "rejected": [)" + says_c + "]}";
  EXPECT_THAT(samples(options(with_prompt)), testing::ElementsAre(good, bad));
  EXPECT_EQ(read_dataset_info(folder_ / "chat")->num_pairs, 1U);
  // Without a prompt, the common beginning of both answers is the prompt.
  EXPECT_THAT(
      samples(options(
          R"({"chosen": [)" + user + "," + says_a + R"(], "rejected": [)" +
          user + "," + says_c + "]}")),
      testing::ElementsAre(good, bad));
  // A prompt that is a text says once more what both begin with.
  EXPECT_THAT(
      samples(options(
          R"({"prompt": "Q", "chosen": [)" + user + "," + says_a +
          R"(], "rejected": [)" + user + "," + says_c + "]}")),
      testing::ElementsAre(good, bad));
  const std::string other = R"({"role": "system", "content": "S"},)";
  for (const std::string& front : {std::string(), other}) {
    EXPECT_THAT(
        message_of_prepare(options(
            R"({"prompt": "Q", "chosen": [)" + front + says_a +
            R"(], "rejected": [)" + front + says_c + "]}")),
        HasSubstr("'prompt' is a text, and 'chosen' and 'rejected' are "
                  "messages that do not begin with it"));
  }
  EXPECT_THAT(
      samples(options(
          R"({"prompt": "One", "chosen": " two", "rejected": " three"})")),
      testing::ElementsAre(
          "One[[ two<|endoftext|>]]", "One[[ three<|endoftext|>]]"));
  EXPECT_THAT(
      samples(options(R"({"chosen": "One two", "rejected": "One four"})")),
      testing::ElementsAre(
          "One[[ two<|endoftext|>]]", "One[[ four<|endoftext|>]]"));
  // " fox" is one token.
  EXPECT_THAT(
      samples(options(R"({"chosen": "the fox", "rejected": "the f x"})")),
      testing::ElementsAre(
          "the[[ fox<|endoftext|>]]", "the[[ f x<|endoftext|>]]"));
}

TEST_F(PrepareChatTest, APairWithAnEmptyAnswerIsKept) {
  const std::string asked = "<|im_start|>user\nQ<|im_end|>\n";
  EXPECT_THAT(
      samples(
          options(R"({"prompt": [{"role": "user", "content": "Q"}],)"
                  R"("chosen": [{"role": "assistant", "content": ""}],)"
                  R"("rejected": [{"role": "assistant", "content": "A"}]})")),
      testing::ElementsAre(
          asked + "<|im_start|>assistant\n[[<|im_end|>]]\n",
          asked + "<|im_start|>assistant\n[[A<|im_end|>]]\n"));
}

TEST_F(PrepareChatTest, APairIsKeptWholeOrLeftOut) {
  const std::string equal =
      R"({"prompt": "One", "chosen": " two", "rejected": " two"})";
  const std::string good =
      R"({"prompt": "One", "chosen": " two", "rejected": " three"})";
  const std::string uneven =
      R"({"prompt": "One", "chosen": " two", "rejected": " a b c d e f g"})";
  PrepareOptions prepared = options(equal + "\n" + uneven + "\n" + good);
  prepared.chat->max_tokens = 12;
  const PrepareResult result = prepare(prepared);
  EXPECT_EQ(result.info.num_documents, 2U);
  EXPECT_EQ(result.info.num_pairs, 1U);
  EXPECT_EQ(result.chat->equal_pairs, 1U);
  EXPECT_EQ(result.chat->too_long, 1U);
  EXPECT_EQ(result.chat->pairs(), 3U);
  EXPECT_THAT(
      message_of_prepare(options(equal)),
      HasSubstr("in 1 pairs both answers are equal"));
  EXPECT_THAT(
      message_of_prepare(options(good + "\n" + kTwoTurns)),
      HasSubstr("1 lines are pairs of a chosen and a rejected answer, and 1"));
  EXPECT_THAT(
      message_of_prepare(
          options(R"({"prompt": [], "chosen": "a", "rejected": "b"})")),
      HasSubstr("leave 'prompt' out"));
}

TEST_F(PrepareChatTest, RemovesTheReferenceFileOfOtherPairs) {
  const auto reference = write("chat.reference.json", "{}");
  prepare(
      options(R"({"prompt": "One", "chosen": " two", "rejected": " three"})"));
  EXPECT_FALSE(std::filesystem::exists(reference));
}

TEST_F(PrepareChatTest, LongConversationsAreSkippedCutOrRefused) {
  const std::string lines =
      std::string(kTwoTurns) + "\n\n" + R"({"text": "x"})" + "\n";
  PrepareOptions prepared = options(lines);
  prepare(prepared);
  const uint64_t whole =
      TokenDataset::open(prepared.out_prefix).documents().begin(1);
  prepared.chat->max_tokens = static_cast<int64_t>(whole) - 1;
  PrepareResult result = prepare(prepared);
  EXPECT_EQ(result.info.num_documents, 1U);
  EXPECT_EQ(result.chat->too_long, 1U);
  prepared.chat->too_long = TooLong::kCut;
  result = prepare(prepared);
  EXPECT_EQ(result.info.num_documents, 2U);
  const TokenDataset dataset = TokenDataset::open(prepared.out_prefix);
  EXPECT_EQ(dataset.documents().begin(1), whole - 1);
  EXPECT_EQ(dataset.counting_tokens(), result.counting_tokens);
  prepared.chat->too_long = TooLong::kRefuse;
  EXPECT_THAT(
      message_of_prepare(prepared),
      HasSubstr("chat.jsonl] at line 1: the conversation has "));
}

// As for what is missing, which Python's json module writes so.
TEST_F(PrepareChatTest, PythonsNumbersThatJsonLacksAreNoMembers) {
  EXPECT_EQ(
      sample(R"({"instruction": "NaN", "input": NaN, "output": "A", "score": )"
             R"([Infinity, -Infinity]})"),
      "<|im_start|>user\nNaN<|im_end|>\n"
      "<|im_start|>assistant\n[[A<|im_end|>]]\n");
  EXPECT_THAT(
      message_of_prepare(options(R"({"text": "a", "score": NaN, "b": nan})")),
      HasSubstr("no JSON object, from its byte 24 on"));
  EXPECT_THAT(
      message_of_prepare(
          options(R"({"messages": [{"role": "user", "content": NaN}]})")),
      HasSubstr("/messages/0 has no content"));
}

TEST_F(PrepareChatTest, ErrorsNameTheirLine) {
  const auto complaint = [&](const std::string& line) {
    return message_of_prepare(options("\n" + line));
  };
  EXPECT_THAT(
      complaint("{\"messages\": ["),
      HasSubstr("chat.jsonl] at line 2: the line is no JSON object"));
  EXPECT_THAT(
      complaint("{\"text\": \"a\", \"score\": 1e400}"),
      HasSubstr("chat.jsonl] at line 2: the number 1e400 is beyond the range "
                "of double precision; write it as text"));
  EXPECT_THAT(
      complaint(R"({"messages": [], "tools": "[-1e999]"})"),
      HasSubstr("'messages' is not a list of messages"));
  EXPECT_THAT(
      complaint(R"({"messages": [{"role": "user", "content": "x"}],)"
                R"("tools": "[-1e999]"})"),
      HasSubstr("at line 2: the number -1e999 is beyond"));
  EXPECT_THAT(complaint("{\"a\": 1}"), HasSubstr("is no conversation"));
  EXPECT_THAT(
      complaint(R"({"messages": [{"content": "x"}]})"),
      HasSubstr("/messages/0 has no role"));
  EXPECT_THAT(
      complaint(R"({"messages": [{"role": "user", "content": 5}]})"),
      HasSubstr("chat.jinja:2: '+' does not take values of types str and int"));
  EXPECT_THAT(
      complaint(R"({"messages": [{"role": "user", "content": "x"}]})"),
      HasSubstr("no conversation is left: 0 are too long, in 1 no token "
                "counts"));
  EXPECT_THAT(
      complaint(R"({"messages": [{"role": "assistant", "content": "x",)"
                R"("tool_calls": [{"name": "f"}]}]})"),
      HasSubstr("/messages/0 calls tools, and the template"));
  PrepareOptions without = options(kTwoTurns);
  without.chat->template_file.clear();
  EXPECT_THAT(
      message_of<ConfigError>([&] { prepare(without); }),
      HasSubstr("chat.jsonl] at line 1: [chat] a conversation of messages "
                "needs a chat template"));
  without.chat->form = ConversationForm::kMessages;
  EXPECT_THAT(message_of_prepare(without), HasSubstr("has no chat template"));
}

TEST_F(PrepareChatTest, TextNeedsNoTemplate) {
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const std::vector<std::string> expected = samples(options(lines));
  PrepareOptions without = options(lines);
  without.chat->template_file.clear();
  EXPECT_EQ(samples(without), expected);
  EXPECT_EQ(expected.size(), 2U);
}

// Otherwise chats with a model of this data would use another template.
TEST_F(PrepareChatTest, ANamedTemplateIsKeptBesideTheDataset) {
  PrepareOptions named = options(kTwoTurns);
  std::filesystem::create_directories(folder_ / "tokenizer");
  std::filesystem::copy_file(
      named.tokenizer, folder_ / "tokenizer" / "tokenizer.json");
  write(
      "tokenizer/tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "usual"}, )"
      R"({"name": "other", "template": "other{{ eos_token }}"}]})");
  named.tokenizer = folder_ / "tokenizer";
  named.chat->template_file.clear();
  named.chat->template_name = "other";
  named.chat->loss = LossOn::kAll;
  prepare(named);
  EXPECT_EQ(
      read_text_file(folder_ / "chat.tokenizer" / "chat_template.jinja"),
      "other{{ eos_token }}");
}

TEST_F(PrepareChatTest, AdditionalTemplatesAreKeptUnlessOneIsNamed) {
  PrepareOptions several = options(kTwoTurns);
  std::filesystem::create_directories(
      folder_ / "tokenizer" / "additional_chat_templates");
  std::filesystem::copy_file(
      several.tokenizer, folder_ / "tokenizer" / "tokenizer.json");
  write("tokenizer/chat_template.jinja", "the usual one");
  write("tokenizer/additional_chat_templates/tool_use.jinja", "with tools");
  several.tokenizer = folder_ / "tokenizer";
  several.chat->template_file.clear();
  several.chat->loss = LossOn::kAll;
  prepare(several);
  const auto kept = folder_ / "chat.tokenizer" / "additional_chat_templates";
  EXPECT_EQ(read_text_file(kept / "tool_use.jinja"), "with tools");
  several.chat->template_name = "tool_use";
  prepare(several);
  EXPECT_FALSE(std::filesystem::exists(kept));
}

TEST_F(PrepareChatTest, ATemplateIsNeverReplaced) {
  PrepareOptions named = options(kTwoTurns);
  named.chat->template_file = write("chat.json", kTemplate);
  EXPECT_THAT(
      message_of<ConfigError>([&] { prepare(named); }),
      HasSubstr("--template '" + named.chat->template_file.string() + "' is"));
  EXPECT_EQ(read_text_file(folder_ / "chat.json"), kTemplate);
}

TEST_F(PrepareChatTest, AFoldersListsAreTaken) {
  const std::string line = R"({"instruction": "a", "output": "b"})";
  write("chats/a.json", "[" + line + "," + line + "]");
  write("chats/b.jsonl", line + "\n");
  write("chats/c.csv", "a,b\n");
  // Hugging Face's folders have these files.
  write("chats/dataset_info.json", "{\n  \"citation\": \"\"\n}\n");
  write("chats/state.json", "{\n  \"_split\": [\"train\"]\n}\n");
  PrepareOptions folder = options("");
  folder.inputs = {folder_ / "chats"};
  EXPECT_EQ(samples(folder).size(), 3U);
}

TEST_F(PrepareChatTest, AListIsReadAsItsElementsOnLines) {
  using Json = nlohmann::ordered_json;
  const Json list = {
      {{"instruction", "a, [b] {c} \"d\" \\"}, {"output", "x\ny"}},
      {{"conversations",
        {{{"from", "human"}, {"value", "]"}},
         {{"from", "gpt"}, {"value", "é"}}}}},
      {{"instruction", "\\\""}, {"output", ","}}};
  std::string lines;
  for (const Json& each : list)
    lines += each.dump() + "\n";
  const std::vector<std::string> expected = samples(options(lines));
  EXPECT_EQ(expected.size(), 3U);
  PrepareOptions listed = options("");
  for (const int indent : {-1, 0, 2}) {
    for (const char* front : {"", "\xEF\xBB\xBF", " \r\n"}) {
      listed.inputs = {write("list.json", front + list.dump(indent) + "\n")};
      EXPECT_EQ(samples(listed), expected) << indent << front;
    }
  }
}

TEST_F(PrepareChatTest, ErrorsInAListNameTheirPlace) {
  const std::string good = R"({"instruction": "a", "output": "b"})";
  const auto complaint = [&](const std::string& text,
                             const std::string& name = "list.json") {
    PrepareOptions listed = options("");
    listed.inputs = {write(name, text)};
    return message_of_prepare(listed);
  };
  EXPECT_THAT(
      complaint("[" + good + ",\n{\"a\":\n1}]"),
      HasSubstr("list.json] at conversation 2: the object is no"));
  // Its name and leading white space do not matter.
  EXPECT_THAT(
      complaint("\n [" + good + ",\n{\"a\":\n1}]", "list.jsonl"),
      HasSubstr("list.jsonl] at conversation 2: the object is no"));
  EXPECT_THAT(
      complaint("\n{\"a\": 1}\n", "lines.json"),
      HasSubstr("lines.json] at line 2: the object is no"));
  EXPECT_THAT(
      complaint("[" + good + ",\n" + good), HasSubstr("the list is cut off"));
  EXPECT_THAT(
      complaint("[" + good + ",]"),
      HasSubstr("list.json] at byte 37: a comma in the list without"));
  EXPECT_THAT(
      complaint("[," + good + "]"), HasSubstr("at byte 1: a comma in the"));
  EXPECT_THAT(
      complaint("[" + good + "]\n[" + good + "]"),
      HasSubstr("at byte 38: something stands behind the list; a file whose "
                "first character is [ is read as one list, also a .jsonl"));
  EXPECT_THAT(complaint("[]"), HasSubstr("no conversation is left"));
}

class GivenBytes : public ByteStream {
 public:
  explicit GivenBytes(std::string text) : text_(std::move(text)) {}
  size_t read(char* out, size_t size) override {
    const size_t count = text_.copy(out, size, at_);
    at_ += count;
    return count;
  }
  uint64_t file_position() const override { return at_; }

 private:
  std::string text_;
  size_t at_ = 0;
};

TEST(JsonListStream, GivesTheSameInReadsOfAnySize) {
  for (const auto& [text, expected] :
       {std::pair<std::string, std::string>{
            R"([ {"a": "]\\\"[,"},[1,2] , "x" ] )",
            R"( {"a": "]\\\"[,"})"
            "\n[1,2] \n \"x\" \n"},
        {"{\"a\": [1,\n2]}\n[3]", "{\"a\": [1,\n2]}\n[3]"}}) {
    for (const size_t size : {1U, 2U, 7U, 1000U}) {
      JsonListStream stream(std::make_unique<GivenBytes>(text), "x");
      std::string all;
      std::string piece(size, '\0');
      while (const size_t count = stream.read(piece.data(), size))
        all += piece.substr(0, count);
      EXPECT_EQ(all, expected) << size;
    }
  }
}

TEST_F(PrepareChatTest, AMaskOfBeforeDoesNotOutliveItsTokens) {
  prepare(options(kTwoTurns));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "chat.mask"));
  PrepareOptions plain{
      .inputs = {write("a.txt", "abc")},
      .out_prefix = folder_ / "chat",
      .tokenizer = "bytes",
      .existing = PrepareOptions::Existing::kOverwrite};
  prepare(plain);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "chat.mask"));
}

}  // namespace
}  // namespace brigade
