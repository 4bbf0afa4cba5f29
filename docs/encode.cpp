// The code of one request, through libtorch: encode model.ts.pt PIXELS SIDE [TOKEN ...]
// PIXELS is a file of 3 x SIDE x SIDE bytes, as docs/artefact.md prepares a picture, channel by
// channel; TOKEN are the ids of the text in tokenizer.json. Prints the code in hex.
#include <torch/script.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 5) return std::cerr << "usage: encode MODEL PIXELS SIDE TOKEN [TOKEN ...]\n", 2;
  const int64_t side = std::stol(argv[3]);
  std::vector<char> pixels(3 * side * side);
  if (!std::ifstream(argv[2], std::ios::binary).read(pixels.data(), pixels.size()))
    return std::cerr << argv[2] << ": expected " << pixels.size() << " bytes\n", 1;
  std::vector<int64_t> ids;
  for (int i = 4; i < argc; ++i) ids.push_back(std::stol(argv[i]));

  c10::InferenceMode guard;
  auto model = torch::jit::load(argv[1]);
  auto images = torch::from_blob(pixels.data(), {1, 3, side, side}, torch::kUInt8);
  auto tokens = torch::tensor(ids).unsqueeze(0);
  auto image_mask = torch::ones({1}, torch::kBool), token_mask = torch::ones_like(tokens, torch::kBool);
  auto output = model.forward({images, image_mask, tokens, token_mask}).toTuple();
  auto logits = output->elements()[3].toTensor()[0];  // key, image, text, logits, alignment

  for (int64_t bit = 0; bit < logits.size(0); bit += 4) {
    int digit = 0;
    for (int64_t i = bit; i < bit + 4; ++i) digit = 2 * digit + (logits[i].item<float>() >= 0);
    std::printf("%x", digit);
  }
  std::printf("\n");
}
