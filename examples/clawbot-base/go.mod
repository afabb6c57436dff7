module clawbot

go 1.24
